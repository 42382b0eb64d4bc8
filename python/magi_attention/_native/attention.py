# SPDX-License-Identifier: Apache-2.0
"""Attention calls. What depends on shapes, types, strides and options is packed once; a call passes
its tensors, of which the module of calls takes the addresses. Nothing here reads a tensor's values.

Code that runs in every call is written out instead of called: a call of a Python function takes as
long as an address.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, NamedTuple

import torch

from magi_attention._native.allocator import current_device
from magi_attention._native.library import (
    PreparedCall,
    address_of,
    check,
    ends,
    told,
    use_memory_of,
    use_views_of,
)
from magi_attention._native.tensors import LOWEST_USUAL_ADDRESS, as_plain, memory_of

DTYPE_CODES = {
    torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.int32: 4,
    torch.int64: 5,
}  # fmt: skip
CPU_DEVICE = -1
LATENT_DIMS = 576, 512  # of keys and values, for kernels of a GPU

# A magi_tensor: struct_size, data, dtype, device, rank, shape[4], stride[4].
TENSOR = struct.Struct("@NPiii4q4q")
_NUM_TENSORS = 13  # of a prepared call
_OF_QUERIES = 4, 5, 7, 8, 9  # the places of out, lse, their gradients and dq
_SAVED = ("q", "k", "v", "sink", "out", "lse")  # for the backward

_empty_like = torch.empty_like
# Whether a tensor like one without strides is row-major.
_IS_LIKE_ROW_MAJOR = _empty_like(torch.empty((1, 1), device="cpu").expand(2, 3)).stride() == (3, 1)

try:
    from torch._C import _cuda_getCurrentRawStream as _raw_stream
except ImportError:  # a torch without CUDA

    def _raw_stream(device_index: int) -> int:
        return torch.cuda.current_stream(device_index).cuda_stream


def device_index(tensor: torch.Tensor) -> int:
    """The library's number of a tensor's device: a CUDA ordinal, or that of host memory."""
    return tensor.get_device() if tensor.is_cuda else CPU_DEVICE


def current_stream(index: int) -> int | None:
    """torch's current stream of a device by its number; None for host memory."""
    return None if index < 0 else _raw_stream(index)


def pack_tensor(buffer, offset: int, tensor: torch.Tensor, data: int) -> None:
    """Writes a magi_tensor of this address; ValueError for a type the library does not know."""
    device = device_index(tensor)
    _pack(buffer, offset, data, tensor.dtype, device, tensor.shape, tensor.stride())


def _pack(buffer, offset: int, data: int, dtype, device: int, shape, stride) -> None:
    code = DTYPE_CODES.get(dtype)
    if code is None:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPE_CODES)
        raise ValueError(f"dtype is {dtype}; allowed: {names}")
    rank = len(shape)
    if not 1 <= rank <= 4:
        raise ValueError(f"tensor has {rank} axes; allowed: 1 to 4")
    pad = (0,) * (4 - rank)
    TENSOR.pack_into(
        buffer, offset, TENSOR.size, data, code, device, rank, *shape, *pad, *stride, *pad
    )


def _kind(tensor: torch.Tensor) -> tuple:
    return tuple(tensor.shape), tensor.dtype, tensor.device, tensor.stride()


def _in_words(kind) -> str:
    return f"shape {list(kind[0])}, {kind[1]} on {kind[2]}"


def _row_major(shape: tuple[int, ...], heads: int = 0) -> tuple[int, ...]:
    """Strides of a tensor that torch makes, in elements; heads: all, where it has some of them."""
    strides = [1]
    for size in reversed((heads or shape[1], *shape[2:]) if shape[1:] else ()):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))


class TensorStruct:
    """One magi_tensor that borrows the memory of a tensor, which errors call `name`."""

    def __init__(self, tensor: torch.Tensor, name: str = "x") -> None:
        self._tensor = tensor
        self._buffer = ctypes.create_string_buffer(TENSOR.size)
        pack_tensor(self._buffer, 0, tensor, memory_of(name, tensor))
        self.address = ctypes.addressof(self._buffer)


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type of lse, max_logits and sink."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Runner(NamedTuple):
    """Addresses of functions of the library and of their first argument, which `owner` keeps alive.
    workspace_bytes: tells that of the backward on a GPU, or 0 where the library takes its own.
    backend: the name of one, as a C string, for attention on one device. backward_handle: the first
    argument of backward, where it is another. backwards: tells other ranks of backward passes, by
    begin() and refuse(error).
    """

    forward: int
    backward: int
    handle: int
    owner: Any
    workspace_bytes: int = 0
    backend: ctypes.Array | None = None
    backward_handle: int = 0
    backwards: Any = None


class Options(NamedTuple):
    """softmax_scale 0: 1 / sqrt(head_dim); softcap 0: off; sink_layout 0: "sh", 1: "ssh";
    sm_margin: multiprocessors of a GPU that are left to others; is_fast_backward: dq of a GPU may
    differ in its last bits from call to call; whole_heads: out, lse, their gradients and dq are
    given, as some of so many heads of tensors without gaps; 0: all of them.
    """

    scale: float = 0.0
    softcap: float = 0.0
    sink_layout: int = 0
    with_max_logits: bool = False
    sm_margin: int = 0
    is_fast_backward: bool = False
    whole_heads: int = 0


def is_latent(q, v) -> bool:
    """Whether keys are latents on a GPU, whose first columns are the values: dk has the gradient of
    both.
    """
    return q.is_cuda and (q.shape[2], v.shape[2]) == LATENT_DIMS


class Call:
    """Attention of tensors of one kind: the shapes, strides, types and device of q, k, v and sink,
    and the options. Any number of threads may use it at once.
    """

    def __init__(self, runner: Runner, q, k, v, sink, options: Options) -> None:
        self._runner, self._options = runner, options
        # Of the backward's workspace; None: not known yet.
        self._num_bytes: int | None = None if device_index(q) >= 0 else 0
        self._device = device_index(q)
        self.with_max_logits = options.with_max_logits
        rows, heads = q.shape[:2]
        self._out_shape, self._lse_shape = (rows, heads, v.shape[2]), (rows, heads)
        self._max_shape = (heads,)
        self._wide = accumulator_dtype(q.dtype)
        self._is_dense = q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
        self._is_like_q = self._is_dense and q.shape == self._out_shape
        # To make a tensor like another takes half as long as to make one of a shape and type.
        self._like_lse = q.new_empty((1, 1), dtype=self._wide).expand(self._lse_shape)
        # Memory that a call keeps is in the way of a CUDA graph that it was made in.
        self._like_lse.untyped_storage().resize_(0)
        self._has_like_lse = _IS_LIKE_ROW_MAJOR and rows > 0 and heads > 0
        # Of what a backward is given.
        self._kinds = [_kind(t) for t in (q, k, v)] + [None if sink is None else _kind(sink)]
        for shape, dtype in ((self._out_shape, q.dtype), (self._lse_shape, self._wide)):
            self._kinds.append((shape, dtype, q.device, _row_major(shape, options.whole_heads)))
        self._prepared = self._backward = self._prepare(q, k, v, sink, options, runner.handle)
        self._fits = self._prepared.fits
        if runner.backward_handle:
            self._backward = self._prepare(q, k, v, sink, options, runner.backward_handle)

    def _prepare(self, q, k, v, sink, options: Options, handle: int) -> PreparedCall:
        buffer = bytearray(_NUM_TENSORS * TENSOR.size)
        for slot, tensor in enumerate((q, k, v, sink)):
            if tensor is not None:
                pack_tensor(buffer, slot * TENSOR.size, tensor, 0)
        # Results are row-major, as torch makes them: nothing is allocated to learn that.
        out, lse = (self._out_shape, q.dtype), (self._lse_shape, self._wide)
        max_logits = (self._max_shape, self._wide) if self.with_max_logits else None
        gradients = [None if t is None else (tuple(t.shape), t.dtype) for t in (q, k, v, sink)]
        made = (out, lse, max_logits, out, lse, *gradients)
        for slot, kind in enumerate(made, start=4):
            if kind is not None:
                shape, dtype = kind
                strides = _row_major(shape, options.whole_heads * (slot in _OF_QUERIES))
                _pack(buffer, slot * TENSOR.size, 0, dtype, self._device, shape, strides)
        return PreparedCall(
            bytes(buffer), options.scale, options.softcap, options.sink_layout, options.sm_margin,
            options.is_fast_backward, sink is not None, options.with_max_logits,
            self._runner.forward, self._runner.backward, handle,
            0 if self._runner.backend is None else ctypes.addressof(self._runner.backend),
        )  # fmt: skip

    def _results(self, q):
        out = _empty_like(q) if self._is_like_q else q.new_empty(self._out_shape)
        if self._has_like_lse:
            lse = _empty_like(self._like_lse)
        else:
            lse = q.new_empty(self._lse_shape, dtype=self._wide)
        if self.with_max_logits:
            return out, lse, q.new_empty(self._max_shape, dtype=self._wide)
        return out, lse, None

    def _gradients(self, q, k, v, sink):
        dsink = None if sink is None else sink.new_empty(sink.shape)
        if is_latent(q, v):
            return q.new_empty(q.shape), k.new_empty(k.shape), None, dsink
        if self._is_dense:
            return _empty_like(q), _empty_like(k), _empty_like(v), dsink
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsink

    def forward(self, q, k, v, sink, results=None):
        """out, lse and max_logits (None unless asked for), enqueued on the current stream.
        ValueError for a tensor without memory, which the library would take for none.
        """
        results = out, lse, max_logits = results or self._results(q)
        stream = 0 if self._device < 0 else _raw_stream(self._device)
        status = self._prepared.forward(q, k, v, sink, out, lse, max_logits, stream)
        if status or ends:
            check(status)
        return results

    def refuse(self, error: Exception) -> None:
        """Tells other ranks, which may wait in this call's backward, that this one raises error."""
        if self._runner.backwards is not None:
            self._runner.backwards.refuse(error)

    def backward(self, dout, dlse, q, k, v, out, lse, sink, gradients=None):
        """dq, dk, dv (None where is_latent) and dsink (None without a sink); dout and dlse are
        contiguous but for whole_heads, dlse may be None. Errors as forward, and ValueError for
        others than forward had: hooks of saved tensors may give back anything.
        """
        # What tells the forms of tensors does not tell of those that are negated lazily.
        is_negated = q.is_neg() or k.is_neg() or v.is_neg() or out.is_neg() or lse.is_neg()
        is_negated = is_negated or (sink is not None and sink.is_neg())
        if is_negated or not (_HAS_VIEWS and self._fits(q, k, v, sink, out, lse)):
            try:
                other, saved = self._restored(q, k, v, sink, out, lse)
            except Exception as error:
                self.refuse(error)
                raise
            if other is not self:
                return other.backward(dout, dlse, *saved, gradients)
        if self._runner.backwards is not None:
            self._runner.backwards.begin()
        gradients = dq, dk, dv, dsink = gradients or self._gradients(q, k, v, sink)
        device, num_bytes = self._device, self._num_bytes
        stream, workspace = 0, None  # None: the module of calls takes it from torch
        if device >= 0:
            stream = _raw_stream(device)
            if num_bytes is None:
                num_bytes = self._find_workspace_bytes()
            if num_bytes and current_device() != device:
                # Given back to torch as this returns: the stream's order protects it.
                workspace = q.new_empty(num_bytes, dtype=torch.uint8)
        status = self._backward.backward(
            q, k, v, sink, out, lse, dout, dlse, dq, dk, dv, dsink, workspace, num_bytes, stream
        )
        if status or ends:
            check(status)
        return gradients

    def _restored(self, *given) -> tuple[Call, tuple]:
        """This call where q, k, v, the sink, out and lse are of its kinds, or one for others that
        differ in strides alone; and these in the order of backward, of another call's without gaps.
        ValueError by name where shape, type or device differ.
        """
        found, is_other = [], False
        for name, tensor, kind in zip(_SAVED, given, self._kinds):
            if kind is not None:
                plain = as_plain(name, tensor)
                *has, strides = _kind(plain)
                if has != [*kind[:3]]:
                    raise ValueError(
                        f"{name} has {_in_words(has)} in backward; allowed: {_in_words(kind)}, as "
                        "in forward, whatever hooks of saved tensors do"
                    )
                is_other = is_other or plain is not tensor or strides != kind[3]
                tensor = plain
            found.append(tensor)
        if not is_other:
            q, k, v, sink, out, lse = given
            return self, (q, k, v, out, lse, sink)
        q, k, v, sink, out, lse = (None if t is None else t.contiguous() for t in found)
        return self._other(q, k, v, sink), (q, k, v, out, lse, sink)

    def _other(self, q, k, v, sink) -> Call:
        """The same for tensors of other strides."""
        return Call(self._runner, q, k, v, sink, self._options)

    def _find_workspace_bytes(self) -> int:
        """Returns the workspace of a backward call on a GPU; 0: the library takes its own."""
        num_bytes, function = 0, self._runner.workspace_bytes
        if function:
            ask = self._backward.ranges_backward_bytes
            num_bytes = told(ctypes.c_size_t, ask, function, self._runner.handle)
        self._num_bytes = num_bytes
        return num_bytes


use_memory_of(memory_of, LOWEST_USUAL_ADDRESS)
# Whether torch tells the form of tensors without making objects of Python.
_views = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_HAS_VIEWS = _views is not None and use_views_of(_views)

flex_forward = address_of("magi_flex_attention_forward")
flex_backward = address_of("magi_flex_attention_backward")
flex_backward_bytes = address_of("magi_flex_attention_backward_workspace_bytes")
dist_forward = address_of("magi_attention_forward")
dist_backward = address_of("magi_attention_backward")
