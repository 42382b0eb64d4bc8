# SPDX-License-Identifier: Apache-2.0
"""Start-up bytes between the ranks of a process group, without a tensor."""

from __future__ import annotations

import datetime
import time

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from magi_attention.errors import CommError

_PREFIX = "magi_attention/nccl"
_POLL_SECONDS = 0.002


def wait_for_key(store: dist.Store, key: str, timeout: datetime.timedelta, who: str) -> bytes:
    """The value of a key once it has one. CommError that begins with `who` where it gets none."""
    try:
        if isinstance(_root(store), dist.FileStore):  # its wait looks once a second
            _poll(store, key, timeout)
        else:
            store.wait([key], timeout)
        return store.get(key)
    except Exception as error:
        late = "imeout" in str(error) or "imed out" in str(error)
        code = CommError.TIMEOUT if late else CommError.SYSTEM
        raise CommError(f"{who}: {error}", code) from error


def _root(store: dist.Store) -> dist.Store:
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def _poll(store: dist.Store, key: str, timeout: datetime.timedelta) -> None:
    deadline = time.monotonic() + timeout.total_seconds()
    while not store.check([key]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"wait timeout after {timeout.total_seconds():g} s")
        time.sleep(_POLL_SECONDS)


class StoreAllgather:
    """An allgather over a c10d store: what a rank says lies there until all have read it. Ranks
    make the objects of one store in the same order.
    """

    def __init__(
        self, store: dist.Store, rank: int, num_ranks: int, timeout: datetime.timedelta
    ) -> None:
        self._store, self._rank, self._num_ranks = store, rank, num_ranks
        self._timeout = timeout
        self._group = store.add(f"{_PREFIX}/groups/{rank}", 1)  # the how manieth of this rank's
        self._call = 0

    def __call__(self, data: bytes) -> list[bytes]:
        """Every rank's bytes in rank order. CommError naming the rank that does not come."""
        call, self._call = self._call, self._call + 1
        self._store.set(self._key(call, self._rank), data)
        all_bytes = [self._wait_for(call, rank) for rank in range(self._num_ranks)]
        # All ranks are in this call, so they have read what was said two calls before.
        if call >= 2:
            self._store.delete_key(self._key(call - 2, self._rank))
        return all_bytes

    def _key(self, call: int, rank: int) -> str:
        return f"{_PREFIX}/{self._group}/{call}/{rank}"

    def _wait_for(self, call: int, rank: int) -> bytes:
        who = f"rank {self._rank} waited for rank {rank} at the group's store"
        return wait_for_key(self._store, self._key(call, rank), self._timeout, who)


def store_allgather(group: dist.ProcessGroup, timeout: datetime.timedelta) -> StoreAllgather:
    """An allgather over the store that the group was made with."""
    store = _get_process_group_store(group)
    return StoreAllgather(store, dist.get_rank(group), dist.get_world_size(group), timeout)
