# SPDX-License-Identifier: Apache-2.0
"""Saved tensors in pinned host memory: copied on a stream of their own, fetched one layer ahead."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from magi_attention.common._arguments import check_int
from magi_attention.functional._kept import Keeping


class Offload:
    """Moves tensors that autograd saves inside of `with` to host memory and brings them back for
    the backward: those of a layer while the layer after it computes, both ways. Works are ordered
    on streams; the host waits for none. Weights, tensors below min_bytes and those in host memory
    stay where they are, and so do those of the last layers, which the backward begins with.
    layers: whose tensors are on the device at a time; 2: of one that computes and of one that is on
    its way; 1: least memory, but nothing is copied while a layer computes.

    A layer begins where its checkpoint asks for one of this object's context_fn: `recompute` (the
    whole layer is recomputed from its inputs, which are what moves) or `save_attention` (out and
    lse of attention move as well, and attention is not computed again). Outside of such
    checkpoints every tensor is a layer.
    """

    _MOVED = ("cuda",)

    def __init__(self, min_bytes: int = 1 << 20, layers: int = 2) -> None:
        self._min_bytes = check_int("min_bytes", min_bytes, 0)
        self._layers = check_int("layers", layers, 1, 2)
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)
        self._has_layers = False
        self._recent: deque[_Layer] = deque()
        self._sides: dict[torch.device, _Side] = {}

    def __enter__(self) -> Offload:
        self._hooks.__enter__()
        self._has_layers = False
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def over(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model itself, whose every forward now runs inside of this object's `with`."""
        model.register_forward_pre_hook(lambda *_: self.__enter__() and None)
        model.register_forward_hook(lambda *_: self.__exit__(None, None, None), always_call=True)
        return model

    def recompute(self) -> tuple[Any, Any]:
        """A context_fn of torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."""
        self._begin_layer()
        return contextlib.nullcontext(), contextlib.nullcontext()

    def save_attention(self) -> tuple[Any, Any]:
        """A context_fn that keeps attention, in host memory."""
        self._begin_layer()
        return Keeping(self._pack, self._unpack).contexts()

    def _begin_layer(self) -> None:
        self._has_layers = True
        self._next_layer()

    def _next_layer(self) -> _Layer:
        previous = self._recent[-1] if self._recent else None
        if previous is not None:
            for stored in previous.alive():
                stored.send()
        self._recent.append(_Layer(previous))
        if len(self._recent) > self._layers:
            for stored in self._recent.popleft().alive():
                stored.leave()
        return self._recent[-1]

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Stored:
        is_moved = tensor.device.type in self._MOVED and tensor.layout is torch.strided
        base = tensor if tensor._base is None else tensor._base
        if not is_moved or tensor.nbytes < self._min_bytes or isinstance(base, torch.nn.Parameter):
            return tensor
        layer = self._recent[-1] if self._has_layers else self._next_layer()
        stored = _Stored(tensor.detach(), self._side_of(tensor.device), layer)
        layer.stored.append(weakref.ref(stored))
        return stored

    def _unpack(self, packed: torch.Tensor | _Stored) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        tensor, layers = packed.take(), [packed.layer, packed.layer.previous()]
        for layer in layers[: self._layers]:
            for stored in () if layer is None else layer.alive():
                if not stored.was_taken:
                    stored.fetch()
        return tensor

    def _side_of(self, device: torch.device) -> _Side:
        if device not in self._sides:
            self._sides[device] = _Side(device)
        return self._sides[device]


class _Side:
    """The stream of copies of a device; host memory copies at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self.is_cuda else None

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event | None:
        """Copies after the current stream's work; returns what tells the end."""
        if self._stream is None:
            target.copy_(source)
            return None
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            return self._stream.record_event()

    def wait(self, event: torch.cuda.Event | None) -> None:
        """Orders the current stream's later work after the event."""
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)


class _Layer:
    """Tensors that move together. They know their layer; it keeps neither them nor the one
    before.
    """

    def __init__(self, previous: _Layer | None) -> None:
        self.stored: list[weakref.ref[_Stored]] = []
        self.previous = (lambda: None) if previous is None else weakref.ref(previous)

    def alive(self) -> list[_Stored]:
        """Its tensors that somebody may still ask for."""
        found = (reference() for reference in self.stored)
        return [stored for stored in found if stored is not None]


class _Stored:
    """A tensor on its device, in host memory, or on its way. Memory of the device belongs to the
    stream that computes, which waits for a copy before it has the memory anew: so how far the host
    is ahead of the device does not change how much is held.
    """

    def __init__(self, tensor: torch.Tensor, side: _Side, layer: _Layer) -> None:
        self.layer, self.was_taken = layer, False
        self._side, self._tensor, self._version = side, tensor, tensor._version
        self._host: torch.Tensor | None = None
        self._event: torch.cuda.Event | None = None  # the end of the last copy

    def send(self) -> None:
        """Begins the copy to the host, unless there is one."""
        if self._host is None:
            self._check_unchanged()
            host = torch.empty_like(self._tensor, device="cpu", pin_memory=self._side.is_cuda)
            self._event = self._side.copy(host, self._tensor)
            self._host = host

    def _check_unchanged(self) -> None:
        """RuntimeError where an operation in place has changed what the backward needs."""
        if self._tensor is not None and self._tensor._version != self._version:
            raise RuntimeError(
                f"a saved tensor of shape {list(self._tensor.shape)} was changed in place before "
                "Offload copied it; allowed: operations that give a new tensor"
            )

    def leave(self) -> None:
        """Gives the device's memory back where the host has a copy."""
        if self._host is not None and self._tensor is not None:
            self._side.wait(self._event)
            self._tensor = None

    def fetch(self) -> None:
        """Begins the copy to the device where the tensor is not there."""
        if self._tensor is None:
            self._tensor = torch.empty_like(self._host, device=self._side.device)
            self._event = self._side.copy(self._tensor, self._host)

    def take(self) -> torch.Tensor:
        """The tensor on the device, for work of the current stream."""
        if self._host is None:
            self._check_unchanged()
        self.fetch()
        tensor, self.was_taken = self._tensor, True
        self.leave()
        return tensor

    def __del__(self) -> None:
        self.leave()
