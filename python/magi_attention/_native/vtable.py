# SPDX-License-Identifier: Apache-2.0
"""A communicator table of the C interface filled with methods of a Python object."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Protocol

import torch

from magi_attention._native.attention import DTYPE_CODES
from magi_attention._native.library import Handle, check, lib, made
from magi_attention._native.structs import CommCounters, CommOptions, bytes_to_int64
from magi_attention.errors import CommError

CAST, SUM, LSE_MERGE, OTHER = 0, 1, 2, 3

_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("dtype", c_int32),
        ("device", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * 4),
        ("stride", c_int64 * 4),
    ]

    def view(self) -> torch.Tensor:
        """The memory as a tensor, not copied."""
        dtype = _DTYPES[self.dtype]
        shape, stride = self.shape[: self.rank], self.stride[: self.rank]
        if 0 in shape:
            return torch.empty(shape, dtype=dtype, device="cpu")
        extent = sum((n - 1) * step for n, step in zip(shape, stride)) + 1
        memory = (ctypes.c_char * (extent * dtype.itemsize)).from_address(self.data)
        return torch.frombuffer(memory, dtype=dtype).as_strided(shape, stride)


class _PeerRows(ctypes.Structure):
    _fields_ = [("peer", c_int32), ("row", c_int32), ("num_rows", c_int32)]


class _ExchangeArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("inputs", POINTER(_Tensor)),
        ("outputs", POINTER(_Tensor)),
        ("num_tensors", c_int32),
        ("kind", c_int32),
        ("owned", POINTER(_PeerRows)),
        ("num_owned", c_int64),
        ("needed", POINTER(_PeerRows)),
        ("num_needed", c_int64),
        ("plan_digest", c_uint64),
        ("wave", c_int32),
    ]


class _AllToAllArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("send", c_void_p),
        ("receive", c_void_p),
        ("send_bytes", POINTER(c_int64)),
        ("receive_bytes", POINTER(c_int64)),
        ("device", c_int32),
        ("kind", c_int32),
        ("plan_digest", c_uint64),
        ("wave", c_int32),
    ]


class _Counters(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bytes_to_peer", POINTER(c_int64)),
        ("messages", c_int64),
        ("casts", c_int64),
        ("reduces", c_int64),
    ]


_GATHER_SINK = CFUNCTYPE(None, c_void_p, c_int32, c_char_p, c_size_t)
_ALLGATHER = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, _GATHER_SINK, c_void_p)
_START = CFUNCTYPE(c_int32, c_void_p, POINTER(_ExchangeArgs), POINTER(c_void_p))
_WAIT = CFUNCTYPE(c_int32, c_void_p, c_void_p)
_RELEASE = CFUNCTYPE(None, c_void_p, c_void_p)
_ABORT = CFUNCTYPE(None, c_void_p, c_char_p)
_COUNTERS = CFUNCTYPE(c_int32, c_void_p, POINTER(_Counters))
_CLOSE = CFUNCTYPE(c_int32, c_void_p)
_DESTROY = CFUNCTYPE(None, c_void_p)
_LAST_ERROR = CFUNCTYPE(c_void_p, c_void_p, POINTER(c_int32))
_ALL_TO_ALL = CFUNCTYPE(c_int32, c_void_p, POINTER(_AllToAllArgs), c_void_p)


class _Vtable(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("context", c_void_p),
        ("rank", c_int32),
        ("num_ranks", c_int32),
        ("backend", c_char_p),
        ("allgather", _ALLGATHER),
        ("start", _START),
        ("wait", _WAIT),
        ("release", _RELEASE),
        ("abort", _ABORT),
        ("counters", _COUNTERS),
        ("close", _CLOSE),
        ("destroy", _DESTROY),
        ("last_error", _LAST_ERROR),
        ("all_to_all_v", _ALL_TO_ALL),
    ]


@dataclass(frozen=True)
class Exchange:
    """One exchange: rows are (peer, first row, rows); see magi/comm_vtable.h."""

    kind: int
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    owned: list[tuple[int, int, int]]
    needed: list[tuple[int, int, int]]
    digest: int
    wave: int


@dataclass(frozen=True)
class DeviceExchange:
    """Bytes of every rank for every rank in device memory: addresses of both buffers, bytes by
    rank, and the stream whose later work sees the result.
    """

    send: int
    receive: int
    send_bytes: list[int]
    receive_bytes: list[int]
    device: int
    stream: int
    kind: int  # CAST, SUM, or OTHER, which is not counted


class Transport(Protocol):
    """What a communicator is made of. Errors are exceptions."""

    rank: int
    num_ranks: int
    backend: bytes
    bytes_to_peer: list[int]
    messages: int
    casts: int
    reduces: int
    moves_device_memory: bool

    def allgather(self, data: bytes) -> list[bytes]: ...

    def start(self, exchange: Exchange):
        """Returns a function that waits for the exchange."""

    def all_to_all_v(self, exchange: DeviceExchange) -> None:
        """Enqueues the exchange; called where moves_device_memory."""

    def abort(self, reason: str) -> None: ...


class Communicator(Handle):
    """Ranks that exchange rows, one object per rank."""

    destroy = "magi_communicator_destroy"
    __slots__ = ("_supplied",)

    def __init__(self, address: int, supplied: "_Supplied | None" = None) -> None:
        super().__init__(address)
        self._supplied = supplied  # outlives the address: __del__ runs first

    @staticmethod
    def alone() -> "Communicator":
        """A group of one rank."""
        options = CommOptions()
        lib.magi_comm_options_init(options.address)
        return Communicator(made(lib.magi_thread_group_create, 1, options.address))

    @staticmethod
    def over(transport: Transport) -> "Communicator":
        supplied = _Supplied(transport)
        address = made(lib.magi_communicator_from_vtable, ctypes.addressof(supplied.vtable))
        return Communicator(address, supplied)

    def counters(self) -> dict[str, int | list[int]]:
        """Payload bytes sent to every rank so far, and calls."""
        counters = CommCounters()
        check(lib.magi_communicator_counters(self.address, counters.address))
        return {
            "bytes_to_peer": bytes_to_int64(counters.bytes_to_peer),
            "messages": counters.messages,
            "casts": counters.casts,
            "reduces": counters.reduces,
        }


class _Supplied:
    """Keeps the table, its functions and the exchanges under way."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.waits: dict[int, object] = {}
        self.next_exchange = 1
        self.failure, self.message = 0, ctypes.create_string_buffer(b"")
        self.vtable = _Vtable(
            ctypes.sizeof(_Vtable), None, transport.rank, transport.num_ranks, transport.backend,
            _ALLGATHER(self.allgather), _START(self.start), _WAIT(self.wait),
            _RELEASE(self.release), _ABORT(self.abort), _COUNTERS(self.counters),
            _CLOSE(lambda context: 0), _DESTROY(lambda context: None),
            _LAST_ERROR(self.last_error),
            _ALL_TO_ALL(self.all_to_all_v) if transport.moves_device_memory else _ALL_TO_ALL(),
        )  # fmt: skip

    def guarded(self, call) -> int:
        """The status of a call; what it raised is kept for last_error."""
        try:
            call()
            return 0
        except CommError as error:
            self.failure, text = error.code, str(error)
        except Exception as error:  # nothing may unwind into C
            self.failure, text = CommError.SYSTEM, f"{type(error).__name__}: {error}"
        self.message = ctypes.create_string_buffer(" ".join(text.split()).encode())
        return 3

    def allgather(self, context, data, num_bytes, sink, sink_context) -> int:
        def call() -> None:
            gathered = self.transport.allgather(ctypes.string_at(data, num_bytes))
            for rank, item in enumerate(gathered):
                sink(sink_context, rank, item, len(item))

        return self.guarded(call)

    def start(self, context, args, exchange) -> int:
        def call() -> None:
            given = args.contents
            count = given.num_tensors
            wait = self.transport.start(
                Exchange(
                    given.kind,
                    [given.inputs[i].view() for i in range(count)],
                    [given.outputs[i].view() for i in range(count)],
                    _rows(given.owned, given.num_owned),
                    _rows(given.needed, given.num_needed),
                    given.plan_digest,
                    given.wave,
                )
            )
            number = self.next_exchange
            self.next_exchange += 1
            self.waits[number] = wait
            exchange[0] = number

        return self.guarded(call)

    def wait(self, context, exchange) -> int:
        return self.guarded(lambda: self.waits[exchange]())

    def release(self, context, exchange) -> None:
        self.waits.pop(exchange, None)

    def all_to_all_v(self, context, args, stream) -> int:
        def call() -> None:
            given, count = args.contents, self.transport.num_ranks
            self.transport.all_to_all_v(
                DeviceExchange(
                    given.send or 0,
                    given.receive or 0,
                    given.send_bytes[:count],
                    given.receive_bytes[:count],
                    given.device,
                    stream or 0,
                    given.kind,
                )
            )

        return self.guarded(call)

    def abort(self, context, reason) -> None:
        self.guarded(lambda: self.transport.abort(reason.decode(errors="replace")))

    def counters(self, context, counters) -> int:
        filled = counters.contents
        for rank, num_bytes in enumerate(self.transport.bytes_to_peer):
            filled.bytes_to_peer[rank] = num_bytes
        filled.messages = self.transport.messages
        filled.casts, filled.reduces = self.transport.casts, self.transport.reduces
        return 0

    def last_error(self, context, failure) -> int:
        failure[0] = self.failure
        return ctypes.addressof(self.message)


def _rows(records, count: int) -> list[tuple[int, int, int]]:
    return [(records[i].peer, records[i].row, records[i].num_rows) for i in range(count)]
