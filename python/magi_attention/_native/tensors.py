# SPDX-License-Identifier: Apache-2.0
"""Tensors whose memory holds their values, which is what the library reads."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))
_num_modes = torch._C._len_torch_dispatch_stack
_has_transforms = torch._C._are_functorch_transforms_active
_tracing_state = torch._C._get_tracing_state
_is_traced = torch.compiler.is_dynamo_compiling
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
_PLAIN = "a plain torch.Tensor"
# Addresses below are looked at closely: a view into freed memory has its offset for one.
LOWEST_USUAL_ADDRESS = 1 << 40


def is_intercepted() -> bool:
    """Whether a compiler, a mode or a transform of torch sees operators before they run."""
    return _is_traced() or bool(_num_modes()) or _has_transforms() or _tracing_state() is not None


def refuse_transforms() -> None:
    """NotImplementedError inside of torch.func's transforms and of torch.jit.trace, which do not
    see what the library computes.
    """
    if _is_traced():
        return
    if _has_transforms():
        raise NotImplementedError(
            "torch.func's transforms (vmap, grad, jvp, jacrev, ...) are not available; use "
            "torch.autograd for gradients, and pack a batch along the rows"
        )
    if _tracing_state() is not None:
        raise NotImplementedError(
            "torch.jit.trace is not available, as it would keep results as constants; use "
            "torch.export or torch.compile"
        )


def refuse_tangent(name: str, tensor: Any) -> None:
    """NotImplementedError for a tensor that carries a derivative of forward-mode AD, which would be
    lost.
    """
    if _is_traced() or forward_ad._current_level < 0 or not isinstance(tensor, torch.Tensor):
        return
    if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality):
        return  # operators that a mode runs: tangents are not seen here
    with _disable_current_modes():
        tangent = forward_ad.unpack_dual(tensor).tangent
    if tangent is not None:
        raise NotImplementedError(
            f"{name} carries a tangent, and forward-mode AD is not available; use torch.autograd "
            "for gradients"
        )


def as_plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its memory holds its values, with subclasses that change no operator;
    a copy of one that is negated lazily or that a collective still fills. TypeError for other
    subclasses (DTensor, FakeTensor, ...) and kinds, ValueError for one without memory. While
    operators are intercepted tensors pass, as the operators look at what they are run with.
    NotImplementedError as refuse_tangent.
    """
    refuse_tangent(name, tensor)
    if is_intercepted():
        return tensor
    kind = type(tensor)
    if not issubclass(kind, torch.Tensor):
        raise TypeError(f"{name} is a {kind.__name__}; allowed: a torch.Tensor")
    if kind not in PLAIN_TYPES and kind.__torch_dispatch__ is not _NO_DISPATCH:
        return _waited(name, tensor)
    if tensor.layout is not torch.strided:
        raise ValueError(f"{name} has layout {tensor.layout}; allowed: torch.strided")
    if tensor.is_quantized or tensor.is_nested:
        what = "quantised" if tensor.is_quantized else "nested"
        raise TypeError(f"{name} is {what}; allowed: {_PLAIN}")
    if tensor.is_meta:
        raise RuntimeError(f"{name} is on meta; allowed: a device with memory")
    memory_of(name, tensor)
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def as_tensor(value: Any) -> torch.Tensor:
    """A tensor as it is, other values in host memory, whatever torch's default device is."""
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value, device="cpu")


def memory_of(name: str, tensor: torch.Tensor) -> int:
    """The address of a tensor's memory; ValueError where it has elements and no memory."""
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a wrapper of torch's
        address = 0
    if address < LOWEST_USUAL_ADDRESS and tensor.numel():
        if address == 0 or address == tensor.storage_offset() * tensor.itemsize:
            raise ValueError(
                f"{name} has shape {list(tensor.shape)} and no memory; allowed: a tensor with "
                "memory, not one whose storage was freed or that stands for zeros"
            )
    return address


def dense_memory_of(name: str, tensor: torch.Tensor) -> int:
    """memory_of for readers that are told no strides; ValueError unless row-major without gaps."""
    if not tensor.is_contiguous():
        strides = list(tensor.stride())
        raise ValueError(f"{name} has strides {strides}; allowed: row-major without gaps")
    return memory_of(name, tensor)


class _DeviceBytes:
    """Memory of a GPU, in the form that torch takes over without a copy."""

    def __init__(self, data: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (data, False),
            "version": 3,
        }


def bytes_at(address: int, size_bytes: int, device: torch.device) -> torch.Tensor:
    """The memory as uint8 [size_bytes], not copied."""
    if size_bytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    if device.type == "cpu":
        memory = (ctypes.c_char * size_bytes).from_address(address)
        return torch.frombuffer(memory, dtype=torch.uint8)
    return torch.as_tensor(_DeviceBytes(address, size_bytes), device=device)


def _waited(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of what a collective fills, once it has; TypeError for other subclasses."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, AsyncCollectiveTensor):
        return tensor.clone()
    allowed = _PLAIN
    if isinstance(tensor, DTensor):
        allowed = (
            f"{_PLAIN}: {name}.to_local(), this rank's part, or {name}.full_tensor(), the whole"
        )
    raise TypeError(f"{name} is a {type(tensor).__name__}; allowed: {allowed}")
