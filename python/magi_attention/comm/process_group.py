# SPDX-License-Identifier: Apache-2.0
"""Exchanges of bytes over a torch.distributed process group, by its all-to-all."""

from __future__ import annotations

import contextlib
import datetime
import secrets
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from magi_attention._group_holders import DESTROYED, holds_groups
from magi_attention._native.library import ends, keep_end
from magi_attention._native.tensors import bytes_at
from magi_attention._native.vtable import ByteExchange
from magi_attention.comm.first_call import first_calls_of, global_ranks_of, naming
from magi_attention.common._arguments import check_kind
from magi_attention.common._lru import LruCache
from magi_attention.errors import CommError

_GRACE_TIME = 5.0  # seconds in which an interrupted call may end well
_LATE = datetime.timedelta(milliseconds=250)  # rows that take longer may not come at all


def rank_in(name: str, group: dist.ProcessGroup) -> int:
    """This process's rank in the group that the argument `name` gives."""
    if group is DESTROYED:
        raise RuntimeError(f"{name} was destroyed; allowed: a live group")
    if not isinstance(group, dist.ProcessGroup):
        # torch gives an object of its own to processes that a new group does not hold
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            check_kind(
                name,
                group,
                dist.ProcessGroup,
                "a ProcessGroup, of a mesh its get_group(); try: dist.group.WORLD",
            )
        raise ValueError(f"{name} does not hold this process; allowed: a group that does")
    try:
        rank = dist.get_rank(group)
    except (ValueError, RuntimeError, KeyError) as error:
        raise RuntimeError(f"{name} is not usable; allowed: a live group ({error})") from None
    if rank < 0:
        raise ValueError(f"{name} does not hold this process; allowed: a group that does")
    return rank


class ProcessGroupTransport:
    """One rank of a process group. All ranks start the same exchanges in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.num_ranks = dist.get_world_size(group)
        self.backend = b"process_group"
        self._aborted: str | None = None
        # {"cpu": "gloo", "cuda": "nccl"}
        named = str(dist.get_backend_config(group)).split(",")
        backends = dict(pair.split(":") for pair in named)
        self.moves_host_memory = "cpu" in backends
        self.moves_device_memory = backends.get("cuda") == "nccl"
        self._streams = LruCache(64)  # by address and device
        self._name: str | None = None  # by which its ranks know it at the group's store
        self._num_started = 0  # exchanges of host memory
        self._global_ranks = global_ranks_of(group)
        holds_groups(self, "group")

    def allgather(self, data: bytes) -> list[bytes]:
        if self._name is not None:
            return self._gather(data)
        # That of rank 0 comes with the bytes of the first one. To count transports would not do, as
        # a rank may bind plans for itself.
        own = secrets.token_hex(8).encode()
        gathered = self._gather(own + data)
        self._name = gathered[0][: len(own)].decode()
        first_calls = first_calls_of(self.group)
        if first_calls is not None:
            first_calls.later.agreed(self._name)
        return [part[len(own) :] for part in gathered]

    def _gather(self, data: bytes) -> list[bytes]:
        def call() -> list[bytes]:
            device = "cpu" if self.moves_host_memory else f"cuda:{torch.cuda.current_device()}"
            size = torch.tensor([len(data)], device=device)
            sizes = [torch.zeros_like(size) for _ in range(self.num_ranks)]
            dist.all_gather(sizes, size, group=self.group)
            capacity = max(int(size) for size in sizes)
            if capacity == 0:
                return [b""] * self.num_ranks
            padded = torch.zeros(capacity, dtype=torch.uint8, device="cpu")
            if data:
                padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            padded = padded.to(device)
            gathered = [torch.empty_like(padded) for _ in range(self.num_ranks)]
            dist.all_gather(gathered, padded, group=self.group)
            return [bytes(part[: int(n)].tolist()) for part, n in zip(gathered, sizes)]

        return self._translated(call)

    def start_bytes(self, exchange: ByteExchange) -> Callable[[], None] | None:
        """The group's all-to-all; on a GPU in the order of the stream, where nothing waits."""
        is_host = exchange.device < 0
        device = torch.device("cpu") if is_host else torch.device("cuda", exchange.device)
        check_device(self, device)
        given = bytes_at(exchange.send, sum(exchange.send_bytes), device)
        wanted = bytes_at(exchange.receive, sum(exchange.receive_bytes), device)
        # The caller's host memory may be gone before an exchange that it gave up.
        sent, received = (given.clone(), torch.empty_like(wanted)) if is_host else (given, wanted)

        def call() -> dist.Work | None:
            return dist.all_to_all_single(
                received, sent, exchange.receive_bytes, exchange.send_bytes,
                group=self.group, async_op=is_host,
            )  # fmt: skip

        if is_host:
            work = self._translated(call, exchange)
            self._num_started += 1
            number = self._num_started

            def wait() -> None:
                self._translated(lambda: self._wait_for(work, number), exchange, number)
                wanted.copy_(received)
                sent.resize_(0)  # kept until here

            return wait
        with torch.cuda.stream(self._stream(exchange.stream, exchange.device)):
            self._translated(call, exchange)
        return None

    def _wait_for(self, work: dist.Work, number: int) -> None:
        """Waits. What is to end the program waits for the rows too, as the ranks are in step behind
        the call alone; not longer than _GRACE_TIME, and not the second time.
        """
        give_up = time.monotonic() + _GRACE_TIME if ends else None
        while True:
            try:
                if self._has_come(work, number):
                    return
            except Exception:
                raise
            except BaseException as end:
                if give_up is not None:
                    raise
                keep_end(end)
                give_up = time.monotonic() + _GRACE_TIME
            if give_up is not None and time.monotonic() > give_up:
                self.abort("interrupted")
                raise CommError(f"rank {self.rank} was interrupted", CommError.ABORTED)

    def _has_come(self, work: dist.Work, number: int) -> bool:
        """Waits for a while, then says so and looks whether another rank compares options, refuses
        its arguments or has aborted instead of sending.
        """
        try:
            work.wait(_LATE)
            return True
        except RuntimeError:
            # It may have ended since that wait gave up: well, or with an error of its own.
            if work.is_completed():
                work.wait()
                return True
        first_calls = first_calls_of(self.group)
        if first_calls is None:
            return False
        try:
            first_calls.later.wait(self._name, number)
            first_calls.join_those_who_compare()
            first_calls.later.check(self._name)
        except CommError as error:
            if error.code != CommError.TIMEOUT or not work.is_completed():
                self.abort(str(error))
                raise
        return False

    def _stream(self, address: int, device: int) -> torch.cuda.Stream:
        """torch's object for a stream; of the library's streams there are few."""
        if address == 0:
            return torch.cuda.default_stream(device)
        stream = self._streams.get((address, device))
        if stream is None:
            stream = self._streams[address, device] = torch.cuda.ExternalStream(address, device)
        return stream

    def abort(self, reason: str) -> None:
        """Later calls of this rank fail; ranks that wait for rows in host memory are told, those on
        GPUs end at the group's own timeout.
        """
        self._aborted = reason
        first_calls = first_calls_of(self.group)
        if first_calls is not None and self._name is not None:
            with contextlib.suppress(CommError):  # of a store whose host was stopped
                first_calls.later.abort(self._name, f"rank {self.rank} aborted: {reason}")

    def _translated(self, call, exchange: ByteExchange | None = None, number: int = 0):
        """The result of a call of torch.distributed; its errors become CommError, which names the
        exchange, where it is waited for by its number, and the ranks that it fails by.
        """
        if self._aborted is not None:
            raise CommError(f"rank {self.rank} aborted: {self._aborted}", CommError.ABORTED)
        try:
            dist.get_rank(self.group)  # a destroyed group is not known any more
        except (ValueError, RuntimeError, KeyError) as error:
            text = f"cp_group of rank {self.rank} was destroyed; allowed: a live group ({error})"
            raise CommError(text, CommError.SYSTEM) from error
        try:
            return call()
        except CommError as error:
            error.args = (naming(str(error), self._global_ranks),)
            raise
        except Exception as error:
            text = str(error)
            code = CommError.SYSTEM
            if "imed out" in text or "imeout" in text:
                code = CommError.TIMEOUT
            elif "closed by peer" in text or "reset by peer" in text or "Broken pipe" in text:
                code = CommError.PEER_DIED
            where = "" if exchange is None else f" in {exchange.describe(self.rank)}"
            if code == CommError.PEER_DIED:
                where += self._ended_ranks()
            elif code == CommError.TIMEOUT and number > 0:
                where += self._absent_ranks(number)
            text = f"cp_group of rank {self.rank} failed{where}: {text}"
            raise CommError(naming(text, self._global_ranks), code) from error

    def _ended_ranks(self) -> str:
        """ ", as rank 1 has ended", where that is known."""
        first_calls = first_calls_of(self.group)
        if first_calls is None:
            return ""
        ended = first_calls.lives.find_ended(list(range(self.num_ranks)))
        have = "have" if len(ended) > 1 else "has"
        return f", as {first_calls.lives.named(ended)} {have} ended" if ended else ""

    def _absent_ranks(self, number: int) -> str:
        """ ", to which rank 1 did not come", where that is known."""
        first_calls = first_calls_of(self.group)
        if first_calls is None:
            return ""
        try:
            absent = first_calls.later.find_absent(self._name, number)
        except CommError as error:  # of a store whose host was stopped
            return f", and {error}"
        return f", to which {first_calls.lives.named(absent)} did not come" if absent else ""


def naming_ranks(group: dist.ProcessGroup, call: Callable[[], object]) -> None:
    """Runs a collective of torch, whose errors become CommError that names ranks which ended."""
    ProcessGroupTransport(group)._translated(call)


def check_device(transport: ProcessGroupTransport, device: torch.device) -> None:
    """ValueError unless the group moves memory of the device."""
    if device.type == "cpu" and not transport.moves_host_memory:
        raise ValueError("cp_group is nccl alone; allowed for host tensors: a group with gloo")
    if device.type == "cuda" and not transport.moves_device_memory:
        raise ValueError("cp_group has no nccl; allowed for tensors on a GPU: a group with nccl")
