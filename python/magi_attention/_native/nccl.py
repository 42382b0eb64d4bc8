# SPDX-License-Identifier: Apache-2.0
"""Communicators over NCCL, which the library calls itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int32, c_size_t, c_void_p

from magi_attention._native.library import keep_end, lib, made
from magi_attention._native.structs import Bootstrap, NcclOptions
from magi_attention._native.vtable import Communicator
from magi_attention.errors import CommError

_ALLGATHER = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, c_void_p)

Allgather = Callable[[bytes], list[bytes]]


class _CallbackBootstrap:
    """An allgather of Python as the C interface asks for one. What it raised is kept."""

    def __init__(self, rank: int, num_ranks: int, allgather: Allgather) -> None:
        self._allgather = allgather
        self._function = _ALLGATHER(self._call)
        self.args = Bootstrap(
            rank=rank, num_ranks=num_ranks, allgather=ctypes.cast(self._function, c_void_p).value
        )
        self.error: BaseException | None = None

    def _call(self, context, data, num_bytes, gathered) -> int:
        try:
            all_bytes = b"".join(self._allgather(ctypes.string_at(data, num_bytes)))
            if len(all_bytes) != num_bytes * self.args.num_ranks:
                raise CommError("ranks gathered bytes of other sizes", CommError.SYSTEM)
            ctypes.memmove(gathered, all_bytes, len(all_bytes))
            return 0
        except BaseException as error:  # nothing may unwind into C
            keep_end(error)
            self.error = error
            return 1


def nccl_communicator(rank: int, num_ranks: int, device: int, allgather: Allgather) -> Communicator:
    """A communicator over NCCL for memory of the GPU `device`. Collective; allgather gives every
    rank's bytes, of one size, in rank order, for as long as the communicator lives. CommError
    naming the rank that cannot join, ValueError where this process has no such GPU.
    """
    options = NcclOptions.filled(lib.magi_nccl_options_init)
    bootstrap = _CallbackBootstrap(rank, num_ranks, allgather)
    try:
        address = made(lib.magi_nccl_group_create, bootstrap.args.address, device, options.address)
    except CommError as error:
        if bootstrap.error is None:
            raise
        text = f"rank {rank} cannot reach the other ranks: {bootstrap.error}"
        raise CommError(text, error.code) from bootstrap.error
    return Communicator(address, bootstrap)
