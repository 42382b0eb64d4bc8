# SPDX-License-Identifier: Apache-2.0
"""The attention of a plan on one rank, with device memory from torch's caching allocator."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import CFUNCTYPE, POINTER, c_int32, c_size_t, c_void_p

import torch

from magi_attention._native.handles import PlanHandle
from magi_attention._native.library import (
    ALLOCATE,
    RELEASE,
    Handle,
    check,
    lib,
    made,
    use_allocator,
)
from magi_attention._native.structs import Sized, fields

# Memory of the current GPU by its address: what torch.cuda.caching_allocator_alloc and _delete
# call, at a third of their time and of an empty tensor's.
try:
    from torch._C import _cuda_cudaCachingAllocator_raw_alloc as raw_allocate
    from torch._C import _cuda_cudaCachingAllocator_raw_delete as raw_release
    from torch._C import _cuda_getDevice as current_device
except ImportError:  # a torch without CUDA, or another one

    def raw_allocate(size_bytes: int, stream: int) -> int:
        return torch.cuda.caching_allocator_alloc(size_bytes, stream=stream)

    def raw_release(data: int) -> None:
        torch.cuda.caching_allocator_delete(data)

    current_device = torch.cuda.current_device


_ALLOCATE = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_int32, c_void_p)
_RELEASE = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_int32, c_void_p)


class DeviceAllocator(Sized):
    """magi_device_allocator."""

    _fields_ = fields("z struct_size, p context, A allocate, R release", A=_ALLOCATE, R=_RELEASE)


class AttentionOptions(Sized):
    """magi_attention_options."""

    _fields_ = fields(
        "z struct_size, A allocator, i exchange_sms, s backend, i are_partials_rounded",
        A=POINTER(DeviceAllocator),
    )


# Within a call the library is given what the call before took from torch, see calls.c.
use_allocator(raw_allocate, raw_release, current_device)
TORCH_ALLOCATOR = DeviceAllocator(allocate=_ALLOCATE(ALLOCATE), release=_RELEASE(RELEASE))


class AttentionHandle(Handle):
    """Runs a plan as one rank of a communicator. exchange_sms: multiprocessors that attention
    leaves to exchanges under way; backend: who computes attention; None: the library's choice.
    are_partials_rounded: partial gradients of keys travel in the type of k.
    """

    destroy = "magi_attention_destroy"
    __slots__ = ("communicator", "plan")
    alive: weakref.WeakSet[AttentionHandle] = weakref.WeakSet()
    # While traces are on (_native.step_trace): those that take notes.
    traced: list[AttentionHandle] | None = None

    def __init__(
        self,
        plan: PlanHandle,
        communicator: Handle,
        exchange_sms: int | None,
        backend: str | None,
        are_partials_rounded: bool = False,
    ) -> None:
        options = AttentionOptions.filled(lib.magi_attention_options_init)
        options.allocator = ctypes.pointer(TORCH_ALLOCATOR)
        if exchange_sms is not None:
            options.exchange_sms = exchange_sms
        if backend is not None:
            options.backend = backend.encode()
        options.are_partials_rounded = are_partials_rounded
        group = communicator.address
        super().__init__(made(lib.magi_attention_create_with, plan.address, group, options.address))
        self.communicator = communicator  # outlives the attention
        self.plan = plan
        AttentionHandle.alive.add(self)
        if AttentionHandle.traced is not None:
            AttentionHandle.traced.append(self)
            check(lib.magi_attention_start_trace(self.address))
