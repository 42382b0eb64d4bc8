# SPDX-License-Identifier: Apache-2.0
"""Row exchanges over a torch.distributed process group, by its all-to-all."""

from __future__ import annotations

from typing import Callable

import torch
import torch.distributed as dist

from magi_attention._native.vtable import CAST, LSE_MERGE, OTHER, DeviceExchange, Exchange
from magi_attention.common._arguments import check_kind
from magi_attention.errors import CommError

# A message is a header of two int64, plan digest and (kind, wave), then the rows of each tensor,
# every part padded to this many bytes. On a GPU there is no header, as nobody could look at it
# without waiting.
_ALIGNMENT = 16
_HEADER_BYTES = 16

_Rows = list[tuple[int, int]]  # (first row, rows)


def rank_in(name: str, group: dist.ProcessGroup) -> int:
    """This process's rank in the group that the argument `name` gives."""
    if not isinstance(group, dist.ProcessGroup):
        # torch gives an object of its own to processes that a new group does not hold
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            check_kind(name, group, dist.ProcessGroup, "a ProcessGroup")
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
        self.bytes_to_peer = [0] * self.num_ranks
        self.messages = self.casts = self.reduces = 0
        self._aborted: str | None = None
        backends = _backends(group)
        self.moves_host_memory = "cpu" in backends
        self.moves_device_memory = backends.get("cuda") == "nccl"
        self._streams: dict[tuple[int, int], torch.cuda.Stream] = {}

    def allgather(self, data: bytes) -> list[bytes]:
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

    def all_to_all_v(self, exchange: DeviceExchange) -> None:
        """The group's all-to-all of bytes, in the order of the given stream; nothing waits."""
        device = torch.device("cuda", exchange.device)
        sent = _device_bytes(exchange.send, sum(exchange.send_bytes), device)
        received = _device_bytes(exchange.receive, sum(exchange.receive_bytes), device)

        def call() -> None:
            with torch.cuda.stream(self._stream(exchange.stream, exchange.device)):
                dist.all_to_all_single(
                    received, sent, exchange.receive_bytes, exchange.send_bytes, group=self.group
                )

        self._translated(call)
        self._count_device(exchange)

    def _stream(self, address: int, device: int) -> torch.cuda.Stream:
        """torch's object for a stream; of the library's streams there are few."""
        if address == 0:
            return torch.cuda.default_stream(device)
        key = (address, device)
        if key not in self._streams:
            if len(self._streams) >= 64:
                self._streams.clear()
            self._streams[key] = torch.cuda.ExternalStream(address, device=device)
        return self._streams[key]

    def start(self, exchange: Exchange) -> Callable[[], None]:
        device = exchange.inputs[0].device
        self._check_device(device)
        is_cast = exchange.kind == CAST
        send = _by_peer(exchange.owned if is_cast else exchange.needed, self.num_ranks)
        receive = _by_peer(exchange.needed if is_cast else exchange.owned, self.num_ranks)
        header = _header(exchange) if device.type == "cpu" else None
        send_sizes = [_message_bytes(header, exchange.inputs, rows) for rows in send]
        # A reduce takes the sender's type, which may be narrower than the owner's.
        models = exchange.outputs if is_cast else exchange.inputs
        receive_sizes = [_message_bytes(header, models, rows) for rows in receive]
        sent = torch.empty(sum(send_sizes), dtype=torch.uint8, device=device)
        for message, rows in zip(sent.split(send_sizes), send):
            if rows:
                _pack(message, header, exchange.inputs, rows)
        received = torch.empty(sum(receive_sizes), dtype=torch.uint8, device=device)
        self._count(exchange, send)
        work = self._translated(
            lambda: dist.all_to_all_single(
                received, sent, receive_sizes, send_sizes, group=self.group, async_op=True
            )
        )

        def wait() -> None:
            self._translated(work.wait)
            if device.type == "cuda":  # this stream may be another than that of the start
                for bytes_ in (sent, received):
                    bytes_.record_stream(torch.cuda.current_stream(device))
            messages = [
                (peer, _unpack(message, header, models, rows, peer, self.rank), rows)
                for peer, (message, rows) in enumerate(zip(received.split(receive_sizes), receive))
                if rows
            ]
            if is_cast:
                for _, parts, rows in messages:
                    _store(parts, exchange.outputs, rows)
            elif exchange.kind == LSE_MERGE:
                for _, parts, rows in messages:
                    _merge(parts, exchange.outputs, rows)
            else:
                for _, parts, rows in messages:
                    _add(parts, exchange.outputs, rows)
            del sent_alive[:]

        sent_alive = [sent]  # the bytes must live until the wait is over
        return wait

    def _check_device(self, device: torch.device) -> None:
        if device.type == "cpu" and not self.moves_host_memory:
            raise ValueError("cp_group is nccl alone; allowed for host tensors: a group with gloo")
        if device.type == "cuda" and not self.moves_device_memory:
            raise ValueError(
                "cp_group has no nccl; allowed for tensors on a GPU: a group with nccl"
            )

    def abort(self, reason: str) -> None:
        """Later calls of this rank fail; ranks that wait end at the group's own timeout."""
        self._aborted = reason

    def _count(self, exchange: Exchange, send: list[_Rows]) -> None:
        row_bytes = sum(_row_bytes(tensor) for tensor in exchange.inputs)
        for peer, rows in enumerate(send):
            if rows:
                self.bytes_to_peer[peer] += row_bytes * sum(count for _, count in rows)
                self.messages += 1
        if exchange.kind == CAST:
            self.casts += 1
        else:
            self.reduces += 1

    def _count_device(self, exchange: DeviceExchange) -> None:
        if exchange.kind == OTHER:
            return
        for peer, num_bytes in enumerate(exchange.send_bytes):
            if num_bytes and peer != self.rank:
                self.bytes_to_peer[peer] += num_bytes
                self.messages += 1
        if exchange.kind == CAST:
            self.casts += 1
        else:
            self.reduces += 1

    def _translated(self, call):
        """The result of a call of torch.distributed; its errors become CommError."""
        if self._aborted is not None:
            raise CommError(f"rank {self.rank} aborted: {self._aborted}", CommError.ABORTED)
        try:
            dist.get_rank(self.group)  # a destroyed group is not known any more
        except (ValueError, RuntimeError, KeyError) as error:
            text = f"cp_group of rank {self.rank} was destroyed; allowed: a live group ({error})"
            raise CommError(text, CommError.SYSTEM) from error
        try:
            return call()
        except Exception as error:
            text = str(error)
            code = CommError.SYSTEM
            if "imed out" in text or "imeout" in text:
                code = CommError.TIMEOUT
            elif "closed by peer" in text or "reset by peer" in text or "Broken pipe" in text:
                code = CommError.PEER_DIED
            raise CommError(f"cp_group of rank {self.rank} failed: {text}", code) from error


class _DeviceMemory:
    """Bytes at an address, in the form that torch takes over without a copy."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }


def _device_bytes(address: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    if num_bytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    return torch.as_tensor(_DeviceMemory(address, num_bytes), device=device)


def _backends(group: dist.ProcessGroup) -> dict[str, str]:
    """What carries tensors of each device type: {"cpu": "gloo", "cuda": "nccl"}."""
    pairs = (pair.split(":") for pair in str(dist.get_backend_config(group)).split(","))
    return {device: backend for device, backend in pairs}


def _by_peer(records: list[tuple[int, int, int]], num_ranks: int) -> list[_Rows]:
    rows: list[_Rows] = [[] for _ in range(num_ranks)]
    for peer, row, count in records:
        rows[peer].append((row, count))
    return rows


def _header(exchange: Exchange) -> torch.Tensor:
    digest = exchange.digest - (1 << 64) if exchange.digest >> 63 else exchange.digest
    words = [digest, exchange.kind << 32 | exchange.wave]
    return torch.tensor(words, dtype=torch.int64, device="cpu")


def _row_bytes(tensor: torch.Tensor) -> int:
    return tensor[0].numel() * tensor.itemsize if tensor.shape[0] else 0


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _message_bytes(header: torch.Tensor | None, tensors: list[torch.Tensor], rows: _Rows) -> int:
    if not rows:
        return 0
    count = sum(n for _, n in rows)
    row_bytes = [_row_elements(tensor) * tensor.itemsize for tensor in tensors]
    return _header_bytes(header) + sum(_padded(count * size) for size in row_bytes)


def _header_bytes(header: torch.Tensor | None) -> int:
    return 0 if header is None else _HEADER_BYTES


def _row_elements(tensor: torch.Tensor) -> int:
    elements = 1
    for extent in tensor.shape[1:]:
        elements *= extent
    return elements


def _parts(message, header, tensors: list[torch.Tensor], rows: _Rows) -> list[torch.Tensor]:
    """The rows of each tensor inside a message, [rows, ...]."""
    count, offset, parts = sum(n for _, n in rows), _header_bytes(header), []
    for tensor in tensors:
        num_bytes = count * _row_elements(tensor) * tensor.itemsize
        part = message[offset : offset + num_bytes].view(tensor.dtype)
        parts.append(part.view(count, *tensor.shape[1:]))
        offset += _padded(num_bytes)
    return parts


def _pack(message: torch.Tensor, header: torch.Tensor | None, tensors: list, rows: _Rows) -> None:
    if header is not None:
        message[:_HEADER_BYTES].view(torch.int64).copy_(header)
    for part, tensor in zip(_parts(message, header, tensors, rows), tensors):
        begin = 0
        for row, count in rows:
            part[begin : begin + count].copy_(tensor[row : row + count])
            begin += count


def _unpack(message, header, tensors, rows: _Rows, peer: int, rank: int) -> list[torch.Tensor]:
    if header is None:
        return _parts(message, header, tensors, rows)
    found = message[:_HEADER_BYTES].view(torch.int64)
    if not torch.equal(found, header):
        raise CommError(
            f"rank {peer} sent rank {rank} rows of another exchange (plan digest "
            f"{found[0].item() & (1 << 64) - 1:016x}, wave {found[1].item() & 0xFFFFFFFF}); "
            f"allowed: plan digest {header[0].item() & (1 << 64) - 1:016x}, "
            f"wave {header[1].item() & 0xFFFFFFFF}",
            CommError.PLAN_MISMATCH,
        )
    return _parts(message, header, tensors, rows)


def _targets(parts: list[torch.Tensor], outputs: list[torch.Tensor], rows: _Rows):
    """(received rows of each tensor, where they go) run by run."""
    begin = 0
    for row, count in rows:
        yield (
            [part[begin : begin + count] for part in parts],
            [output[row : row + count] for output in outputs],
        )
        begin += count


def _store(parts, outputs, rows: _Rows) -> None:
    for received, targets in _targets(parts, outputs, rows):
        for part, target in zip(received, targets):
            target.copy_(part)


def _add(parts, outputs, rows: _Rows) -> None:
    for received, targets in _targets(parts, outputs, rows):
        for part, target in zip(received, targets):
            target.add_(part)


def _merge(parts, outputs, rows: _Rows) -> None:
    """(out, lse) pairs joined as softmax results over disjoint keys."""
    for received, targets in _targets(parts, outputs, rows):
        for i in range(0, len(targets), 2):
            out, lse = targets[i], targets[i + 1]
            merged = torch.logaddexp(lse, received[i + 1])
            keep = torch.exp(lse - merged).nan_to_num(0.0).unsqueeze(-1)
            add = torch.exp(received[i + 1] - merged).nan_to_num(0.0).unsqueeze(-1)
            out.copy_(out * keep + received[i] * add)
            lse.copy_(merged)
