# SPDX-License-Identifier: Apache-2.0
"""Attention calls: tensors packed into one block of memory that is reused from call to call."""

from __future__ import annotations

import ctypes
import struct

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
# struct_size, q, k, v, sink, softmax_scale, softcap, sink_layout
_INPUTS = struct.Struct("@NPPPPddi0q")
# struct_size, out, lse, max_logits
_RESULT = struct.Struct("@NPPP")
# struct_size, dout, dlse, dq, dk, dv, dsink
_GRADIENTS = struct.Struct("@NPPPPPP")

_NUM_TENSORS = 13
_INPUTS_AT = _NUM_TENSORS * _TENSOR.size
_RESULT_AT = _INPUTS_AT + _INPUTS.size
_GRADIENTS_AT = _RESULT_AT + _RESULT.size
_BLOCK_BYTES = _GRADIENTS_AT + _GRADIENTS.size


def pack_tensor(buffer, offset: int, tensor: torch.Tensor) -> None:
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
        buffer, offset, _TENSOR.size, tensor.data_ptr(), code, CPU_DEVICE, rank,
        *tensor.shape, *pad, *tensor.stride(), *pad,
    )  # fmt: skip


class TensorStruct:
    """One magi_tensor that borrows a tensor's memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._buffer = ctypes.create_string_buffer(_TENSOR.size)
        pack_tensor(self._buffer, 0, tensor)
        self.address = ctypes.addressof(self._buffer)


class _Block:
    """Tensors in slots, and the three structs that point at them."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(_BLOCK_BYTES)
        self.address = ctypes.addressof(self.buffer)
        self._used = 0

    def reset(self) -> None:
        self._used = 0

    def add(self, tensor: torch.Tensor | None) -> int:
        """Address of the tensor's struct, 0 for none."""
        if tensor is None:
            return 0
        offset = self._used * _TENSOR.size
        self._used += 1
        pack_tensor(self.buffer, offset, tensor)
        return self.address + offset

    def inputs(self, q, k, v, sink, scale: float, softcap: float, sink_layout: int) -> int:
        add = self.add
        _INPUTS.pack_into(
            self.buffer, _INPUTS_AT, _INPUTS.size, add(q), add(k), add(v), add(sink), scale,
            softcap, sink_layout,
        )  # fmt: skip
        return self.address + _INPUTS_AT

    def result(self, out, lse, max_logits) -> int:
        add = self.add
        _RESULT.pack_into(
            self.buffer, _RESULT_AT, _RESULT.size, add(out), add(lse), add(max_logits)
        )
        return self.address + _RESULT_AT

    def gradients(self, *tensors: torch.Tensor | None) -> int:
        _GRADIENTS.pack_into(
            self.buffer, _GRADIENTS_AT, _GRADIENTS.size, *map(self.add, tensors)
        )
        return self.address + _GRADIENTS_AT


# A call takes a block out and puts it back, so calls of several threads never share one.
_free_blocks: list[_Block] = []


def _take_block() -> _Block:
    try:
        block = _free_blocks.pop()
    except IndexError:
        return _Block()
    block.reset()
    return block


def forward(function, handle: int, inputs: tuple, result: tuple) -> None:
    """function is lib.magi_attention_forward or lib.magi_flex_attention_forward, handle its first
    argument; inputs: q, k, v, sink, scale, softcap, sink layout; result: out, lse, max_logits.
    """
    block = _take_block()
    try:
        check(function(handle, block.inputs(*inputs), block.result(*result), None))
    finally:
        _free_blocks.append(block)


def backward(function, handle: int, inputs: tuple, result: tuple, gradients: tuple) -> None:
    """gradients: dout, dlse, dq, dk, dv, dsink."""
    block = _take_block()
    try:
        check(
            function(
                handle, block.inputs(*inputs), block.result(*result),
                block.gradients(*gradients), None,
            )
        )  # fmt: skip
    finally:
        _free_blocks.append(block)


flex_forward = lib.magi_flex_attention_forward
flex_backward = lib.magi_flex_attention_backward
dist_forward = lib.magi_attention_forward
dist_backward = lib.magi_attention_backward
