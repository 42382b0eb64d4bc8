# SPDX-License-Identifier: Apache-2.0
"""Collectives of the baselines over a process group. They count the bytes that leave this rank; a
muted link moves nothing, which times what is left without communication.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

# Later releases of torch have new names for them and warn of the old ones.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Link:
    """One rank of a group. Works of asynchronous calls are waited for by the current stream."""

    is_muted = False  # of all links: the calls of one step agree

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.bytes_sent = 0
        ranks = dist.get_process_group_ranks(group)
        self._next = ranks[(self.rank + 1) % self.size]
        self._previous = ranks[(self.rank - 1) % self.size]

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        """The i-th of `size` equal parts of sent to rank i."""
        self._count(sent.nbytes * (self.size - 1) // self.size)
        if not Link.is_muted:
            dist.all_to_all_single(received, sent, group=self.group)

    def all_gather(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        """sent of every rank, in rank order."""
        self._count(sent.nbytes * (self.size - 1))
        if not Link.is_muted:
            _all_gather(received.view(-1), sent.view(-1), group=self.group)

    def reduce_scatter(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        """The sum of the rank's part of all ranks' sent."""
        self._count(sent.nbytes * (self.size - 1) // self.size)
        if not Link.is_muted:
            _reduce_scatter(received.view(-1), sent.view(-1), group=self.group)

    def shift(self, received: torch.Tensor, sent: torch.Tensor) -> Shift:
        """sent to the next rank, received from the previous one, at the same time as what comes
        after; both stay as they are until the shift is waited for.
        """
        self._count(sent.nbytes)
        if Link.is_muted:
            return NO_SHIFT
        return Shift(
            dist.batch_isend_irecv([
                dist.P2POp(dist.isend, sent, self._next, self.group),
                dist.P2POp(dist.irecv, received, self._previous, self.group),
            ])
        )  # fmt: skip

    def _count(self, num_bytes: int) -> None:
        self.bytes_sent += num_bytes


class Shift:
    """A transfer under way."""

    def __init__(self, works) -> None:
        self._works = works

    def wait(self) -> None:
        """Orders what comes after it behind the transfer."""
        for work in self._works:
            work.wait()


NO_SHIFT = Shift([])
