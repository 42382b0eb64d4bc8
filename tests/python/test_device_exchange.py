# SPDX-License-Identifier: Apache-2.0
"""The table's entry for device memory, as the library would call it, and what a group can move."""

import ctypes

import pytest
import torch.distributed as dist

from magi_attention._native import vtable
from magi_attention.comm.process_group import ProcessGroupTransport
from magi_attention.errors import CommError


class _Transport:
    rank, num_ranks, backend = 0, 2, b"fake"
    bytes_to_peer, messages, casts, reduces = [0, 0], 0, 0, 0

    def __init__(self, moves_device_memory: bool) -> None:
        self.moves_device_memory = moves_device_memory
        self.seen = []

    def all_to_all_v(self, exchange: vtable.DeviceExchange) -> None:
        self.seen.append(exchange)
        if exchange.kind == vtable.OTHER:
            raise CommError("rank 1 is gone", CommError.PEER_DIED)


def _args(kind: int):
    sizes = ctypes.c_int64 * 2
    return vtable._AllToAllArgs(
        ctypes.sizeof(vtable._AllToAllArgs), 4096, None, sizes(16, 32), sizes(0, 0), 3, kind, 7, 1
    )


def test_arguments_reach_the_transport():
    transport = _Transport(True)
    supplied = vtable._Supplied(transport)
    assert supplied.vtable.all_to_all_v(None, ctypes.byref(_args(vtable.CAST)), 99) == 0
    assert transport.seen == [vtable.DeviceExchange(4096, 0, [16, 32], [0, 0], 3, 99, vtable.CAST)]


def test_errors_are_kept_for_last_error():
    supplied = vtable._Supplied(_Transport(True))
    assert supplied.vtable.all_to_all_v(None, ctypes.byref(_args(vtable.OTHER)), None) == 3
    failure = ctypes.c_int32()
    text = supplied.vtable.last_error(None, ctypes.byref(failure))
    assert ctypes.string_at(text) == b"rank 1 is gone"
    assert failure.value == CommError.PEER_DIED


def test_a_transport_without_device_memory_leaves_the_entry_empty():
    assert not vtable._Supplied(_Transport(False)).vtable.all_to_all_v


@pytest.mark.skipif(not dist.is_gloo_available(), reason="no gloo")
def test_gloo_moves_host_memory_alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        transport = ProcessGroupTransport(dist.group.WORLD)
        assert transport.moves_host_memory
        assert not transport.moves_device_memory
    finally:
        dist.destroy_process_group()
