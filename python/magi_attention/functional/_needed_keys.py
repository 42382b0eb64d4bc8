# SPDX-License-Identifier: Apache-2.0
"""Keys that a plan brings to a rank, as tensors of one device: for attention whose mask is known
when it is called, inside of what the plan allows for.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from magi_attention._group_holders import holds_groups, is_destroyed
from magi_attention.comm.primitive import group_cast, group_reduce
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.common._lru import LruCache

_KEYS_SPACE = 0  # of a transfer in a plan's JSON
_TABLES_KEPT = 4  # a plan's layers have one length and device


class Run(NamedTuple):
    """Neighbouring rows of one owner that go to the same ranks."""

    first: int
    count: int
    receivers: tuple[int, ...]


def runs_to_send(transfers: list[list[int]], owner: int) -> list[Run]:
    """Runs of an owner's rows, from the transfers of a plan's JSON: [src, dst, src row, segment of
    dst, space, dst row, rows] each.
    """
    spans = [
        (first, first + count, dst)
        for src, dst, first, _, space, _, count in transfers
        if src == owner and dst != owner and space == _KEYS_SPACE
    ]
    cuts = sorted({cut for begin, end, _ in spans for cut in (begin, end)})
    runs = []
    for begin, end in itertools.pairwise(cuts):
        receivers = sorted({dst for first, last, dst in spans if first <= begin < last})
        if receivers:
            runs.append(Run(begin, end - begin, tuple(receivers)))
    return runs


class _Moves(NamedTuple):
    """Arguments of a group cast of key rows."""

    sizes: list[int]
    receivers: list[list[int]]
    wanted: list[int]
    sources: list[int]


class NeededKeys:
    """The keys of a plan on one rank: its own rows, and behind them the rows of others that the
    plan's mask lets its queries see, in the order of ranks and of their rows.

    position_ids_of(rank): rows of the sequence of a rank's own rows, without padding.
    NotImplementedError for a plan that moves queries: its keys are not those of own queries.
    """

    def __init__(
        self,
        plan_json: str,
        rank: int,
        position_ids_of: Callable[[int], list[int]],
        total: int,
        group: dist.ProcessGroup | None,
    ) -> None:
        self._group = group
        holds_groups(self, "_group")
        plan = json.loads(plan_json)
        if any(transfer[4] != _KEYS_SPACE for transfer in plan["transfers"]):
            raise NotImplementedError(
                "the plan moves queries; allowed for keys that are chosen in a call: plans whose "
                "keys alone travel"
            )
        self._is_alone = plan["config"]["num_ranks"] == 1
        self._own = _host_ids(position_ids_of(rank))
        self._total = total
        mine = runs_to_send(plan["transfers"], rank)
        (sizes, receivers), self.num_sent = _split(mine)
        wanted, sources, rows = [], [], []
        for source in range(plan["config"]["num_ranks"]):
            of_source = _host_ids(position_ids_of(source))
            for run in runs_to_send(plan["transfers"], source):
                if rank in run.receivers:
                    wanted.append(run.count)
                    sources.append(source)
                    rows.append(of_source[run.first : run.first + run.count])
        self._received = torch.cat([_host_ids([]), *rows])
        self.moves = _Moves(sizes, receivers, wanted, sources)
        self._places = LruCache(_TABLES_KEPT)

    def live_group(self) -> dist.ProcessGroup:
        """RuntimeError where the group was destroyed."""
        if is_destroyed(self._group):
            raise RuntimeError("cp_group of the plan was destroyed; allowed: a live group")
        return self._group

    @property
    def num_received(self) -> int:
        """Rows that come from other ranks in each call."""
        return self._received.shape[0]

    def fetch(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v, own rows, with the received ones behind them; gradients of these go back to
        their owners and are added in the order of the ranks. Collective.
        """
        if self._is_alone:
            return k, v
        others = _Cast.apply(k, v, self)
        return torch.cat((k, others[0])), torch.cat((v, others[1]))

    def places(self, num_rows: int, device: torch.device) -> torch.Tensor:
        """int64 [total + 1]: the row of fetch's result, of num_rows own rows, that holds each row
        of the sequence; -1: it is not here.
        """
        table = self._places.get((num_rows, device))
        if table is None:
            table = torch.full((self._total + 1,), -1, dtype=torch.int64, device="cpu")
            own = self._own[:num_rows]
            table[own] = torch.arange(own.shape[0], device="cpu")
            others = torch.arange(self.num_received, device="cpu")
            table[self._received] = num_rows + others
            table = self._places[num_rows, device] = table.to(device)
        return table


def _host_ids(ids: list[int]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int64, device="cpu")


def _split(runs: list[Run]) -> tuple[tuple[list[int], list[list[int]]], int]:
    """Sizes and receivers of splits that begin with row 0, and the rows of all of them."""
    sizes, receivers, at = [], [], 0
    for run in runs:
        if run.first > at:
            sizes.append(run.first - at)
            receivers.append([])
        sizes.append(run.count)
        receivers.append(list(run.receivers))
        at = run.first + run.count
    return (sizes, receivers), at


class _Cast(torch.autograd.Function):
    """The rows of k and v that come from others. One function, so that all ranks move the gradients
    of both in one order.
    """

    @staticmethod
    def forward(ctx, k, v, needed: NeededKeys):
        ctx.needed, ctx.shapes = needed, (k.shape, v.shape)  # holds no group that was destroyed
        return tuple(_cast(x[: needed.num_sent], needed) for x in (k, v))

    @staticmethod
    def backward(ctx, dk, dv):
        refuse_second_derivative("attention")
        gradients = []
        for gradient, shape in zip((dk, dv), ctx.shapes):
            whole = gradient.new_zeros(shape)
            whole[: ctx.needed.num_sent] = _reduced(gradient, ctx.needed)
            gradients.append(whole)
        return *gradients, None


def _cast(x: torch.Tensor, needed: NeededKeys) -> torch.Tensor:
    sizes, receivers, wanted, sources = needed.moves
    received = x.new_empty((sum(wanted), *x.shape[1:]))
    arguments = sizes, wanted, receivers, sources, needed.live_group()
    return group_cast(x.contiguous(), received, *arguments).wait_post_process()


def _reduced(gradient: torch.Tensor, needed: NeededKeys) -> torch.Tensor:
    """The transpose of _cast; sums are float32 or wider."""
    sizes, receivers, wanted, sources = needed.moves
    wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32)).contiguous()
    sums = wide.new_zeros((needed.num_sent, *gradient.shape[1:]))
    arguments = wanted, sizes, sources, receivers, needed.live_group()
    return group_reduce(wide, sums, *arguments).wait_post_process()
