# SPDX-License-Identifier: Apache-2.0
"""Attention calls. What depends on shapes, types, strides and options is packed once; a call writes
the addresses of its tensors. Nothing here reads a tensor's values.
"""

from __future__ import annotations

import ctypes
import struct
from functools import partial
from typing import Any, Callable, NamedTuple

import torch

from magi_attention._native.library import check, lib

DTYPE_CODES = {
    torch.float64: 0,
    torch.float32: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.int32: 4,
    torch.int64: 5,
}
CPU_DEVICE = -1

# struct_size, data, dtype, device, rank, shape[4], stride[4]
_TENSOR = struct.Struct("@NPiii4q4q")
# struct_size, q, k, v, sink, softmax_scale, softcap, sink_layout, sm_margin, is_fast_backward
_INPUTS = struct.Struct("@NPPPPddiii4x")
# struct_size, out, lse, max_logits
_RESULT = struct.Struct("@NPPP")
# struct_size, dout, dlse, dq, dk, dv, dsink, workspace
_GRADIENTS = struct.Struct("@NPPPPPPP")
# struct_size, data, size_bytes
WORKSPACE = struct.Struct("@NPN")

_Q, _K, _V, _SINK, _OUT, _LSE, _MAX_LOGITS, _DOUT, _DLSE, _DQ, _DK, _DV, _DSINK = range(13)
_INPUTS_AT = 13 * _TENSOR.size
_RESULT_AT = _INPUTS_AT + _INPUTS.size
_SAVED_AT = _RESULT_AT + _RESULT.size  # the result as backward reads it
_GRADIENTS_AT = _SAVED_AT + _RESULT.size
_WORKSPACE_AT = _GRADIENTS_AT + _GRADIENTS.size
_BLOCK_BYTES = _WORKSPACE_AT + WORKSPACE.size
_WORD = 8
_STEP = _TENSOR.size // _WORD
# Words of the block that a call writes: the data of every tensor, one optional gradient, and the
# backward's workspace.
_DATA = tuple(slot * _STEP + 1 for slot in range(13))
(_Q_AT, _K_AT, _V_AT, _SINK_AT, _OUT_AT, _LSE_AT, _MAX_LOGITS_AT, _DOUT_AT, _DLSE_AT, _DQ_AT, _DK_AT,
 _DV_AT, _DSINK_AT) = _DATA  # fmt: skip
_DLSE_WORD = _GRADIENTS_AT // _WORD + 2
_WORKSPACE_WORD = _GRADIENTS_AT // _WORD + 7
_MEMORY_AT, _MEMORY_BYTES_AT = _WORKSPACE_AT // _WORD + 1, _WORKSPACE_AT // _WORD + 2

_empty_like = torch.empty_like

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


def pack_tensor(buffer, offset: int, tensor: torch.Tensor, data: int | None = None) -> None:
    """Writes a magi_tensor; ValueError for a data type the library does not know."""
    code = DTYPE_CODES.get(tensor.dtype)
    if code is None:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPE_CODES)
        raise ValueError(f"dtype is {tensor.dtype}; allowed: {names}")
    rank = tensor.dim()
    if not 1 <= rank <= 4:
        raise ValueError(f"tensor has {rank} axes; allowed: 1 to 4")
    pad = (0,) * (4 - rank)
    _TENSOR.pack_into(
        buffer, offset, _TENSOR.size, tensor.data_ptr() if data is None else data, code,
        device_index(tensor), rank, *tensor.shape, *pad, *tensor.stride(), *pad,
    )  # fmt: skip


class TensorStruct:
    """One magi_tensor that borrows a tensor's memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._buffer = ctypes.create_string_buffer(_TENSOR.size)
        pack_tensor(self._buffer, 0, tensor)
        self.address = ctypes.addressof(self._buffer)


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type of lse, max_logits and sink."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Runner(NamedTuple):
    """Functions of the library and their first argument, which `owner` keeps alive.
    workspace_bytes: that of the backward on a GPU, or None where the library takes its own.
    """

    forward: Any
    backward: Any
    handle: int
    owner: Any
    workspace_bytes: Any = None


class Options(NamedTuple):
    """softmax_scale 0: 1 / sqrt(head_dim); softcap 0: off; sink_layout 0: "sh", 1: "ssh";
    sm_margin: multiprocessors of a GPU that are left to others; is_fast_backward: dq of a GPU may
    differ in its last bits from call to call.
    """

    scale: float = 0.0
    softcap: float = 0.0
    sink_layout: int = 0
    with_max_logits: bool = False
    sm_margin: int = 0
    is_fast_backward: bool = False


class _Block:
    """The structs of one call. words[i] is the i-th group of 8 bytes."""

    __slots__ = (
        "_buffer", "words", "inputs", "result", "saved", "gradients", "dlse", "workspace"
    )  # fmt: skip

    def __init__(self, template: bytes, has_sink: bool, with_max_logits: bool) -> None:
        self._buffer = ctypes.create_string_buffer(template, _BLOCK_BYTES)
        base = ctypes.addressof(self._buffer)
        self.words = memoryview(self._buffer).cast("B").cast("Q")
        self.inputs, self.result = base + _INPUTS_AT, base + _RESULT_AT
        self.saved, self.gradients = base + _SAVED_AT, base + _GRADIENTS_AT
        self.workspace = base + _WORKSPACE_AT
        at = [base + slot * _TENSOR.size for slot in range(13)]
        self.dlse = at[_DLSE]
        given = {_INPUTS_AT: [at[_Q], at[_K], at[_V], at[_SINK] if has_sink else 0]}
        given[_RESULT_AT] = [at[_OUT], at[_LSE], at[_MAX_LOGITS] if with_max_logits else 0]
        given[_SAVED_AT] = [at[_OUT], at[_LSE], 0]
        given[_GRADIENTS_AT] = [at[_DOUT], 0, at[_DQ], at[_DK], at[_DV]]
        given[_GRADIENTS_AT].append(at[_DSINK] if has_sink else 0)
        for offset, addresses in given.items():
            for i, address in enumerate(addresses):
                self.words[offset // _WORD + 1 + i] = address


class Call:
    """Attention of tensors of one kind: the shapes, strides, types and device of q, k, v and sink,
    and the options. Any number of threads may use it at once.
    """

    def __init__(self, runner: Runner, q, k, v, sink, options: Options) -> None:
        self._runner = runner
        self._forward, self._backward, self._handle = runner[:3]
        self._num_bytes = 0  # of the backward's workspace, known from its first call on
        self._device = device_index(q)
        self._has_sink, self.with_max_logits = sink is not None, options.with_max_logits
        rows, heads = q.shape[:2]
        self._out_shape, self._lse_shape = (rows, heads, v.shape[2]), (rows, heads)
        self._max_shape = (heads,)
        self._wide = accumulator_dtype(q.dtype)
        self._is_dense = q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
        self._is_like_q = self._is_dense and q.shape == self._out_shape
        self._template = self._pack(q, k, v, sink, options)
        # A call takes a block out and puts it back, so threads never share one.
        self._blocks: list[_Block] = []

    def _pack(self, q, k, v, sink, options: Options) -> bytes:
        buffer = ctypes.create_string_buffer(_BLOCK_BYTES)
        out, lse, max_logits = self._results(q)
        gradients = self._gradients(q, k, v, sink)
        slots = [(_Q, q), (_K, k), (_V, v), (_SINK, sink), (_OUT, out), (_LSE, lse)]
        slots += [(_MAX_LOGITS, max_logits), (_DOUT, out), (_DLSE, lse)]
        slots += zip((_DQ, _DK, _DV, _DSINK), gradients)
        for slot, tensor in slots:
            if tensor is not None:
                pack_tensor(buffer, slot * _TENSOR.size, tensor, 0)
        _INPUTS.pack_into(
            buffer, _INPUTS_AT, _INPUTS.size, 0, 0, 0, 0, options.scale, options.softcap,
            options.sink_layout, options.sm_margin, options.is_fast_backward,
        )  # fmt: skip
        _RESULT.pack_into(buffer, _RESULT_AT, _RESULT.size, 0, 0, 0)
        _RESULT.pack_into(buffer, _SAVED_AT, _RESULT.size, 0, 0, 0)
        _GRADIENTS.pack_into(buffer, _GRADIENTS_AT, _GRADIENTS.size, 0, 0, 0, 0, 0, 0, 0)
        WORKSPACE.pack_into(buffer, _WORKSPACE_AT, WORKSPACE.size, 0, 0)
        return buffer.raw

    def _results(self, q):
        out = _empty_like(q) if self._is_like_q else q.new_empty(self._out_shape)
        lse = q.new_empty(self._lse_shape, dtype=self._wide)
        if self.with_max_logits:
            return out, lse, q.new_empty(self._max_shape, dtype=self._wide)
        return out, lse, None

    def _gradients(self, q, k, v, sink):
        dsink = None if sink is None else sink.new_empty(sink.shape)
        if self._is_dense:
            return _empty_like(q), _empty_like(k), _empty_like(v), dsink
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsink

    def _take(self) -> _Block:
        try:
            return self._blocks.pop()
        except IndexError:
            return _Block(self._template, self._has_sink, self.with_max_logits)

    def forward(self, q, k, v, sink):
        """out, lse and max_logits (None unless asked for), enqueued on the current stream."""
        block, results = self._fill(q, k, v, sink)
        stream = None if self._device < 0 else _raw_stream(self._device)
        status = self._forward(self._handle, block.inputs, block.result, stream)
        if status:
            check(status)
        self._blocks.append(block)
        return results

    def _fill(self, q, k, v, sink):
        """A block that names these tensors, and new results."""
        results = out, lse, max_logits = self._results(q)
        block = self._take()
        words = block.words
        words[_Q_AT] = q.data_ptr()
        words[_K_AT] = k.data_ptr()
        words[_V_AT] = v.data_ptr()
        words[_OUT_AT] = out.data_ptr()
        words[_LSE_AT] = lse.data_ptr()
        if sink is not None:
            words[_SINK_AT] = sink.data_ptr()
        if max_logits is not None:
            words[_MAX_LOGITS_AT] = max_logits.data_ptr()
        return block, results

    def backward(self, dout, dlse, q, k, v, out, lse, sink):
        """dq, dk, dv and dsink (None without a sink); dout and dlse are contiguous, dlse may be
        None.
        """
        dq, dk, dv, dsink = self._gradients(q, k, v, sink)
        block = self._take()
        words = block.words
        words[_Q_AT] = q.data_ptr()
        words[_K_AT] = k.data_ptr()
        words[_V_AT] = v.data_ptr()
        words[_OUT_AT] = out.data_ptr()
        words[_LSE_AT] = lse.data_ptr()
        words[_DOUT_AT] = dout.data_ptr()
        words[_DQ_AT] = dq.data_ptr()
        words[_DK_AT] = dk.data_ptr()
        words[_DV_AT] = dv.data_ptr()
        if dlse is None:
            words[_DLSE_WORD] = 0
        else:
            words[_DLSE_WORD] = block.dlse
            words[_DLSE_AT] = dlse.data_ptr()
        if sink is not None:
            words[_SINK_AT], words[_DSINK_AT] = sink.data_ptr(), dsink.data_ptr()
        stream = memory = None
        if self._device >= 0:
            stream, memory = _raw_stream(self._device), self._workspace(q, block)
        status = self._backward(
            self._handle, block.inputs, block.saved, block.gradients, stream
        )
        if status:
            check(status)
        self._blocks.append(block)
        del memory  # the stream's order protects it
        return dq, dk, dv, dsink

    def _workspace(self, q, block: _Block):
        """Memory for one backward call on a GPU, named in the block; None: the library takes it."""
        num_bytes = self._num_bytes
        if not num_bytes:
            if self._runner.workspace_bytes is None:
                return None
            size = ctypes.c_size_t()
            address = ctypes.addressof(size)
            structs = block.inputs, block.saved, block.gradients
            check(self._runner.workspace_bytes(self._handle, *structs, address))
            num_bytes = self._num_bytes = size.value
        memory = q.new_empty(num_bytes, dtype=torch.uint8)
        words = block.words
        words[_WORKSPACE_WORD] = block.workspace
        words[_MEMORY_AT], words[_MEMORY_BYTES_AT] = memory.data_ptr(), num_bytes
        return memory


def signature(q, k, v):
    """What a Call depends on besides sink and options."""
    return (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.device, k.device, v.device,
    )  # fmt: skip


class CallCache:
    """Calls of one kind by kinds of tensors; all are forgotten when there are too many. make(q, k,
    v, sink, options) gives a new one.
    """

    _KEPT = 256

    def __init__(self, make: Callable[..., Call]) -> None:
        self._make = make
        self._calls: dict[tuple, Call] = {}

    def find(self, q, k, v, sink, options: Options) -> Call:
        """The call for these tensors, made at the first use."""
        kind = (*signature(q, k, v), options, None if sink is None else sink.shape)
        call = self._calls.get(kind)
        if call is None:
            call = self._make(q, k, v, sink, options)
            if len(self._calls) >= self._KEPT:
                self._calls.clear()
            self._calls[kind] = call
        return call


def calls_of(runner: Runner) -> CallCache:
    """Calls of these functions."""
    return CallCache(partial(Call, runner))


flex_forward = lib.magi_flex_attention_forward
flex_backward = lib.magi_flex_attention_backward
flex_backward_bytes = lib.magi_flex_attention_backward_workspace_bytes
dist_forward = lib.magi_attention_forward
dist_backward = lib.magi_attention_backward
