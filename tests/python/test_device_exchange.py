# SPDX-License-Identifier: Apache-2.0
"""The table of a transport, as the library would call it, and what a group can move."""

import ctypes

import pytest
import torch.distributed as dist

from magi_attention._native import vtable
from magi_attention.comm.process_group import ProcessGroupTransport
from magi_attention.errors import CommError


class _Transport:
    rank, num_ranks, backend = 0, 2, b"fake"

    def __init__(self, moves_device_memory: bool) -> None:
        self.moves_device_memory = moves_device_memory
        self.seen, self.waited = [], 0

    def start_bytes(self, exchange: vtable.ByteExchange):
        self.seen.append(exchange)
        if exchange.send_bytes == [0, 1]:
            raise CommError("rank 1 is gone", CommError.PEER_DIED)
        if exchange.send_bytes == [0, 2]:
            raise ValueError("send is odd")
        return self.wait if exchange.device < 0 else None

    def wait(self) -> None:
        self.waited += 1


def _start(supplied: vtable._Supplied, send_bytes: tuple[int, int], device: int):
    sizes = ctypes.c_int64 * 2
    args = vtable._ByteExchangeArgs(
        ctypes.sizeof(vtable._ByteExchangeArgs), 4096, None, sizes(*send_bytes), sizes(0, 0),
        device, kind=vtable.SUM, stage=2,
    )  # fmt: skip
    exchange = ctypes.c_void_p(77)
    start = supplied.vtable.start_bytes
    return start(None, ctypes.byref(args), 99, ctypes.byref(exchange)), exchange.value


def test_arguments_reach_the_transport():
    transport = _Transport(True)
    assert _start(vtable._Supplied(transport), (16, 32), 3) == (vtable._DONE, None)
    assert transport.seen == [vtable.ByteExchange(4096, 0, [16, 32], [0, 0], 3, 99, vtable.SUM, 2)]


def test_exchanges_of_host_memory_are_waited_for():
    transport = _Transport(False)
    supplied = vtable._Supplied(transport)
    status, exchange = _start(supplied, (16, 32), -1)
    assert (status, transport.waited) == (vtable._DONE, 0)
    assert supplied.vtable.wait(None, exchange) == vtable._DONE
    assert transport.waited == 1
    supplied.vtable.release(None, exchange)
    assert not supplied.waits


def test_errors_are_kept_for_last_error():
    supplied = vtable._Supplied(_Transport(True))
    failure = ctypes.c_int32()
    for sizes, status, text, code in (
        ((0, 1), 3, b"rank 1 is gone", CommError.PEER_DIED),
        ((0, 2), 1, b"send is odd", 0),
    ):
        assert _start(supplied, sizes, 3)[0] == status
        found = supplied.vtable.last_error(None, ctypes.byref(failure))
        assert ctypes.string_at(found) == text
        assert failure.value == code


def test_the_table_says_whether_device_memory_is_moved():
    assert vtable._Supplied(_Transport(True)).vtable.features == 5
    assert vtable._Supplied(_Transport(False)).vtable.features == 4


@pytest.mark.skipif(not dist.is_gloo_available(), reason="no gloo")
def test_gloo_moves_host_memory_alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        transport = ProcessGroupTransport(dist.group.WORLD)
        assert transport.moves_host_memory
        assert not transport.moves_device_memory
    finally:
        dist.destroy_process_group()
