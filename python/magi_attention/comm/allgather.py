# SPDX-License-Identifier: Apache-2.0
"""Start-up bytes between the ranks of a process group, without a tensor."""

from __future__ import annotations

import datetime

from magi_attention.comm.lives import Lives

_PREFIX = "magi_attention/nccl"


class StoreAllgather:
    """An allgather over a c10d store, which keeps a rank's bytes until all ranks have read them.
    Ranks make the objects of one store in the same order.
    """

    def __init__(self, lives: Lives, timeout: datetime.timedelta) -> None:
        self._lives, self._timeout = lives, timeout
        self._store, self._rank, self._num_ranks = lives.store, lives.rank, lives.num_ranks
        # The number of this group among those of this rank.
        self._group = self._store.add(f"{_PREFIX}/groups/{self._rank}", 1)
        self._call = 0

    def __call__(self, data: bytes) -> list[bytes]:
        """Every rank's bytes in rank order. CommError names the rank that does not come."""
        call, self._call = self._call, self._call + 1
        self._store.set(self._key(call, self._rank), data)
        all_bytes = [self._wait_for(call, rank) for rank in range(self._num_ranks)]
        # All ranks are in this call, so all have read the bytes of two calls before.
        if call >= 2:
            self._store.delete_key(self._key(call - 2, self._rank))
        return all_bytes

    def _key(self, call: int, rank: int) -> str:
        return f"{_PREFIX}/{self._group}/{call}/{rank}"

    def _wait_for(self, call: int, rank: int) -> bytes:
        key = self._key(call, rank)
        return self._lives.wait_for(key, rank, self._timeout, "at the group's store")
