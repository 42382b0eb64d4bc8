# SPDX-License-Identifier: Apache-2.0
"""The attention of a plan on one rank, with device memory from torch's caching allocator."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int32, c_size_t, c_void_p

import torch

from magi_attention._native.handles import PlanHandle
from magi_attention._native.library import Handle, check, lib, made
from magi_attention._native.structs import Sized

try:  # what torch.cuda.caching_allocator_alloc and _delete call, at a third of their time
    from torch._C import _cuda_cudaCachingAllocator_raw_alloc as _raw_allocate
    from torch._C import _cuda_cudaCachingAllocator_raw_delete as _raw_release
except ImportError:  # a torch without CUDA, or another one

    def _raw_allocate(size_bytes: int, stream: int) -> int:
        return torch.cuda.caching_allocator_alloc(size_bytes, stream=stream)

    def _raw_release(data: int) -> None:
        torch.cuda.caching_allocator_delete(data)


_ALLOCATE = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_int32, c_void_p)
_RELEASE = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_int32, c_void_p)


class DeviceAllocator(Sized):
    """magi_device_allocator."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("context", c_void_p),
        ("allocate", _ALLOCATE),
        ("release", _RELEASE),
    ]


class AttentionOptions(Sized):
    """magi_attention_options."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("allocator", POINTER(DeviceAllocator)),
        ("exchange_sms", c_int32),
        ("backend", c_char_p),
    ]


def _allocate(_context, size_bytes: int, _device: int, stream: int | None) -> int | None:
    """Memory of the current GPU, which the library has made its own, that work enqueued later on
    the stream may use; None where torch has none left.
    """
    try:
        return _raw_allocate(size_bytes, stream or 0)
    except RuntimeError:  # torch.OutOfMemoryError is one; the library raises its own
        return None


def _release(_context, data: int, _size_bytes: int, _device: int, _stream: int | None) -> None:
    """torch gives the memory to work enqueued later on the stream that it was allocated for."""
    if _raw_release is not None:  # else the interpreter is closing, which gives all memory back
        _raw_release(data)


# The library keeps the addresses of both functions, so these objects live as long as the process.
TORCH_ALLOCATOR = DeviceAllocator(allocate=_ALLOCATE(_allocate), release=_RELEASE(_release))


class AttentionHandle(Handle):
    """Runs a plan as one rank of a communicator. exchange_sms: multiprocessors that attention
    leaves to exchanges under way; backend: who computes attention; None: the library's choice.
    """

    destroy = "magi_attention_destroy"
    __slots__ = ("communicator", "plan")
    alive: weakref.WeakSet[AttentionHandle] = weakref.WeakSet()
    # While traces are on (_native.step_trace): those that take notes.
    traced: list[AttentionHandle] | None = None

    def __init__(
        self, plan: PlanHandle, communicator: Handle, exchange_sms: int | None, backend: str | None
    ) -> None:
        options = AttentionOptions()
        lib.magi_attention_options_init(options.address)
        options.allocator = ctypes.pointer(TORCH_ALLOCATOR)
        if exchange_sms is not None:
            options.exchange_sms = exchange_sms
        if backend is not None:
            options.backend = backend.encode()
        group = communicator.address
        super().__init__(made(lib.magi_attention_create_with, plan.address, group, options.address))
        self.communicator = communicator  # outlives the attention
        self.plan = plan
        AttentionHandle.alive.add(self)
        if AttentionHandle.traced is not None:
            AttentionHandle.traced.append(self)
            check(lib.magi_attention_start_trace(self.address))
