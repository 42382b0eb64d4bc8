# SPDX-License-Identifier: Apache-2.0
"""A communicator table of the C interface filled with methods of a Python object."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from array import array
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int32, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Protocol

import torch

from magi_attention._native.attention import TENSOR, current_stream, device_index, pack_tensor
from magi_attention._native.library import Handle, bytes_of, check, keep_end, lib, made, words_of
from magi_attention._native.structs import (
    CommCounters,
    CommOptions,
    ExchangeArgs,
    PeerRows,
    check_bits,
    fields,
)
from magi_attention._native.tensors import memory_of
from magi_attention.errors import CommError

CAST, SUM, LSE_MERGE, OTHER = 0, 1, 2, 3
_KIND_NAMES = ("group_cast", "group_reduce(sum)", "group_reduce(lse_merge)", "another exchange")
_MOVES_DEVICE_MEMORY, _ANSWERS_DONE = 1, 4
_DONE = 64  # what ctypes never gives for a function that an interrupt cuts short before its `try`
_INVALID_ARGUMENT, _COMM_ERROR = 1, 3


class _ByteExchangeArgs(ctypes.Structure):
    _fields_ = fields(
        "z struct_size, p send, p receive, Q send_bytes, Q receive_bytes, i device, i kind, "
        "u plan_digest, u content, i stage"
    )


_GATHER_SINK = CFUNCTYPE(None, c_void_p, c_int32, c_char_p, c_size_t)
_ALLGATHER = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, _GATHER_SINK, c_void_p)
_START = CFUNCTYPE(c_int32, c_void_p, POINTER(_ByteExchangeArgs), c_void_p, POINTER(c_void_p))
_WAIT = CFUNCTYPE(c_int32, c_void_p, c_void_p)
_RELEASE = CFUNCTYPE(None, c_void_p, c_void_p)
_ABORT = CFUNCTYPE(None, c_void_p, c_char_p)
_CLOSE = CFUNCTYPE(c_int32, c_void_p)
_DESTROY = CFUNCTYPE(None, c_void_p)
_LAST_ERROR = CFUNCTYPE(c_void_p, c_void_p, POINTER(c_int32))


class _Vtable(ctypes.Structure):
    _fields_ = fields(
        "z struct_size, p context, i rank, i num_ranks, s backend, i features, G allgather, "
        "S start_bytes, W wait, R release, A abort, C close, D destroy, E last_error",
        G=_ALLGATHER, S=_START, W=_WAIT, R=_RELEASE, A=_ABORT, C=_CLOSE, D=_DESTROY, E=_LAST_ERROR,
    )  # fmt: skip


def counted_ranks(ranks: list[int]) -> str:
    """ "rank 1", "ranks 0, 2", "ranks none"."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks)) or 'none'}"


@dataclass(frozen=True)
class ByteExchange:
    """Bytes of every rank for every rank: addresses of both buffers, bytes by rank. On a GPU
    (device: its index, else -1) later work on the stream sees the result. kind and stage
    say what the bytes are: CAST, SUM, LSE_MERGE or OTHER.
    """

    send: int
    receive: int
    send_bytes: list[int]
    receive_bytes: list[int]
    device: int
    stream: int
    kind: int = CAST
    stage: int = 0

    def describe(self, rank: int) -> str:
        """Names it, and the other ranks that it exchanges with."""
        sizes = enumerate(zip(self.send_bytes, self.receive_bytes))
        peers = [peer for peer, pair in sizes if any(pair) and peer != rank]
        return f"stage {self.stage} of {_KIND_NAMES[self.kind]} with {counted_ranks(peers)}"


class Transport(Protocol):
    """The functions that a communicator is made of. Errors are exceptions."""

    rank: int
    num_ranks: int
    backend: bytes
    moves_device_memory: bool

    def allgather(self, data: bytes) -> list[bytes]: ...

    def start_bytes(self, exchange: ByteExchange) -> Callable[[], None] | None:
        """Gives a function that waits for the exchange; None where nothing is left to wait for."""

    def abort(self, reason: str) -> None: ...


class Communicator(Handle):
    """Ranks that exchange rows, one object per rank."""

    destroy = "magi_communicator_destroy"
    __slots__ = ("_supplied",)

    def __init__(self, address: int, supplied: object = None) -> None:
        """supplied: the table that the library calls as long as the communicator lives."""
        super().__init__(address)
        self._supplied = supplied  # outlives the address: __del__ runs first

    @staticmethod
    def alone() -> Communicator:
        """A group of one rank."""
        options = CommOptions.filled(lib.magi_comm_options_init)
        return Communicator(made(lib.magi_thread_group_create, 1, options.address))

    @staticmethod
    def over(transport: Transport) -> Communicator:
        table = _Supplied(transport).vtable
        address = made(lib.magi_communicator_from_vtable, ctypes.addressof(table))
        return Communicator(address, table)

    def over_nvlink(self, device: int) -> Communicator:
        """The same ranks, each with a GPU of one host, which write rows straight into each other's
        memory. Collective; CommError on all ranks where one of them cannot take part.
        """
        options = CommOptions.filled(lib.magi_comm_options_init)
        address = made(lib.magi_nvlink_group_create, self.address, device, options.address)
        return Communicator(address, self._supplied)

    @property
    def backend(self) -> str:
        """Names what carries its bytes: "threads", "process_group", "nvlink", "nccl"."""
        return lib.magi_communicator_backend(self.address).decode()

    def check(self) -> None:
        """CommError where this rank knows that the group has failed."""
        check(lib.magi_communicator_check(self.address))

    def exchange(
        self,
        kind: int,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        owned: list[tuple[int, int, int]],
        needed: list[tuple[int, int, int]],
        plan_digest: int = 0,
    ) -> Callable[[], None]:
        """Starts an exchange of rows, which are (peer, first row, rows); see magi_exchange_args in
        magi/magi.h. On a GPU it is enqueued on torch's current stream. Gives a function that waits.
        """
        started = _ExchangeOfRows(self, kind, inputs, outputs, owned, needed, plan_digest)
        return started.wait

    def counters(self) -> dict[str, int | list[int]]:
        """Payload bytes sent to every rank so far, and calls."""
        counters = CommCounters()
        check(lib.magi_communicator_counters(self.address, counters.address))
        return {
            "bytes_to_peer": list(array("q", bytes_of(counters.bytes_to_peer))),
            "messages": counters.messages,
            "casts": counters.casts,
            "reduces": counters.reduces,
        }


class _ExchangeOfRows(Handle):
    """One exchange of rows under way, with the tensors it moves."""

    destroy = "magi_exchange_destroy"
    __slots__ = ("_communicator", "_stream", "_tensors")

    def __init__(
        self, communicator: Communicator, kind, inputs, outputs, owned, needed, plan_digest
    ) -> None:
        self._communicator, self._tensors = communicator, (inputs, outputs)
        device = inputs[0].device
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        sent, received = _packed_tensors(inputs), _packed_tensors(outputs)
        args = ExchangeArgs(
            inputs=ctypes.addressof(sent), outputs=ctypes.addressof(received),
            num_tensors=len(inputs), kind=kind, owned=_records(owned), num_owned=len(owned),
            needed=_records(needed), num_needed=len(needed), plan_digest=plan_digest,
            stream=current_stream(device_index(inputs[0])),
        )  # fmt: skip
        super().__init__(made(lib.magi_exchange_start, communicator.address, args.address))

    def wait(self) -> None:
        """Blocks, or on a GPU lets torch's current stream wait for the rows."""
        check(lib.magi_exchange_wait_sync(self.address))
        if self._stream is not None:
            current = torch.cuda.current_stream(self._stream.device)
            if current != self._stream:
                current.wait_stream(self._stream)


def _packed_tensors(tensors: list[torch.Tensor]):
    """An array of magi_tensor."""
    packed = ctypes.create_string_buffer(len(tensors) * TENSOR.size)
    for i, tensor in enumerate(tensors):
        pack_tensor(packed, i * TENSOR.size, tensor, memory_of("a tensor", tensor))
    return packed


def _records(records: list[tuple[int, int, int]]):
    try:
        numbers = array("i", itertools.chain.from_iterable(records))
    except OverflowError:
        raise ValueError("rows are beyond int32; allowed: at most 2^31 - 1 rows") from None
    return (PeerRows * len(records)).from_buffer(numbers) if records else (PeerRows * 0)()


class _Supplied:
    """The functions of a table, with the exchanges under way."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.waits: dict[int, Callable[[], None]] = {}
        self.next_exchange = 1
        self.failure, self.message = 0, ctypes.create_string_buffer(b"")
        for name in ("rank", "num_ranks"):
            check_bits(name, getattr(transport, name), c_int32)

    @property
    def vtable(self) -> _Vtable:
        """A table that keeps this object alive. This object does not keep the table: a cycle would
        hold the transport's group until Python looks for cycles, while ranks wait for its end.
        """
        transport = self.transport
        return _Vtable(
            ctypes.sizeof(_Vtable), None, transport.rank, transport.num_ranks, transport.backend,
            _ANSWERS_DONE | (_MOVES_DEVICE_MEMORY if transport.moves_device_memory else 0),
            _ALLGATHER(self.allgather), _START(self.start_bytes), _WAIT(self.wait),
            _RELEASE(self.release), _ABORT(self.abort),
            _CLOSE(lambda context: _DONE), _DESTROY(lambda context: None),
            _LAST_ERROR(self.last_error),
        )  # fmt: skip

    def guarded(self, call) -> int:
        """The status of a call; what it raised is kept for last_error."""
        try:
            call()
            return _DONE
        except ValueError as error:
            status, self.failure, words = _INVALID_ARGUMENT, 0, words_of(error)
        except CommError as error:
            status, self.failure, words = _COMM_ERROR, error.code, words_of(error)
        except BaseException as error:  # nothing may unwind into C
            keep_end(error)
            if not isinstance(error, Exception):
                with contextlib.suppress(Exception):  # others may wait for this rank
                    self.transport.abort(f"interrupted by {type(error).__name__}")
            status, self.failure = _COMM_ERROR, CommError.SYSTEM
            words = words_of(error, is_named=True)
        self.message = ctypes.create_string_buffer(b" ".join(words.value.split()))
        return status

    def allgather(self, context, data, num_bytes, sink, sink_context) -> int:
        def call() -> None:
            gathered = self.transport.allgather(ctypes.string_at(data, num_bytes))
            for rank, item in enumerate(gathered):
                sink(sink_context, rank, item, len(item))

        return self.guarded(call)

    def start_bytes(self, context, args, stream, exchange) -> int:
        def call() -> None:
            given, count = args.contents, self.transport.num_ranks
            sizes = given.send_bytes[:count], given.receive_bytes[:count]
            places = given.device, stream or 0
            wait = self.transport.start_bytes(
                ByteExchange(
                    given.send or 0, given.receive or 0, *sizes, *places, given.kind, given.stage
                )
            )
            exchange[0] = None
            if wait is not None:
                exchange[0] = self.next_exchange
                self.waits[self.next_exchange] = wait
                self.next_exchange += 1

        return self.guarded(call)

    def wait(self, context, exchange) -> int:
        return self.guarded(lambda: self.waits[exchange]())

    def release(self, context, exchange) -> None:
        self.waits.pop(exchange, None)

    def abort(self, context, reason) -> None:
        self.guarded(lambda: self.transport.abort(reason.decode(errors="replace")))

    def last_error(self, context, failure) -> int:
        failure[0] = self.failure
        return ctypes.addressof(self.message)
