# SPDX-License-Identifier: Apache-2.0
"""Attention on a GPU under a mask of blocks in its memory: the library makes its lists there, and
the host reads no entry of the mask and waits for nothing.
"""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

import torch

from magi_attention._native.attention import Call, Options, Runner, current_stream
from magi_attention._native.library import address_of, check
from magi_attention._native.tensors import dense_memory_of, memory_of

# struct_size, visible, heads, q_block, k_block, is_causal, max_blocks, max_runs, error_word
_MASK = struct.Struct("@NPiiiiqqP")
# struct_size, data, size_bytes
_WORKSPACE = struct.Struct("@NPN")
_FORWARD = address_of("magi_block_attention_forward")
_BACKWARD = address_of("magi_block_attention_backward")
_BACKWARD_BYTES = address_of("magi_block_attention_backward_workspace_bytes")
_BYTES = address_of("magi_block_attention_workspace_bytes")
_TAKES = address_of("magi_block_attention_takes")


class BlockShape(NamedTuple):
    """All of a mask of blocks but its entries. heads: the kv heads, or 1 for all alike.
    max_blocks: visible blocks of each head that there is room for, 0: all of the mask, once each.
    max_runs: runs of neighbouring blocks that are allowed, 0: any number.
    """

    heads: int
    q_block: int
    k_block: int
    is_causal: bool
    max_blocks: int = 0
    max_runs: int = 0


class BlockMask:
    """A magi_block_mask that borrows visible, uint8 or bool [heads, q_blocks, k_blocks] without
    gaps: how often a block is seen. None: for calls that read no data.
    """

    def __init__(
        self, shape: BlockShape, visible: torch.Tensor | None, error_word: int = 0
    ) -> None:
        self._visible = visible
        self._buffer = ctypes.create_string_buffer(_MASK.size)
        data = 0 if visible is None else dense_memory_of("block_mask", visible)
        sizes = shape.heads, shape.q_block, shape.k_block, shape.is_causal
        room = shape.max_blocks, shape.max_runs
        _MASK.pack_into(self._buffer, 0, _MASK.size, data, *sizes, *room, error_word)
        self.address = ctypes.addressof(self._buffer)


class BlockCall(Call):
    """A Call for masks of one shape. max_logits are refused."""

    def __init__(self, q, k, v, sink, shape: BlockShape, options: Options) -> None:
        super().__init__(Runner(0, 0, 0, None), q, k, v, sink, options)
        self.shape = shape
        self._forward_bytes: int | None = None
        self._backward_bytes: int | None = None

    def is_taken(self) -> bool:
        """Whether the library's kernels for blocks take such calls."""
        taken = ctypes.c_int32()
        self._ask(_TAKES, ctypes.addressof(taken))
        return taken.value != 0

    def _other(self, q, k, v, sink) -> BlockCall:
        return BlockCall(q, k, v, sink, self.shape, self._options)

    def _find_backward_bytes(self) -> int:
        if self._backward_bytes is None:
            size = ctypes.c_size_t()
            mask = BlockMask(self.shape, None)
            ask = self._prepared.ranges_backward_bytes
            check(ask(_BACKWARD_BYTES, mask.address, ctypes.addressof(size)))
            self._backward_bytes = size.value
        return self._backward_bytes

    def _ask(self, function: int, target: int) -> None:
        mask = BlockMask(self.shape, None)  # lives as long as its address is in use
        check(self._prepared.ranges_bytes(function, mask.address, target))

    def _workspace(self) -> int:
        if self._forward_bytes is None:
            size = ctypes.c_size_t()
            self._ask(_BYTES, ctypes.addressof(size))
            self._forward_bytes = size.value
        return self._forward_bytes

    def forward_under(self, q, k, v, sink, visible: torch.Tensor):
        """out, lse and the error word, int64 [2]: how many runs or blocks are beyond the room, or
        lists with entries above 254 (0: all results hold, else they are NaN), and -1. visible:
        that of BlockMask.
        """
        out, lse, _ = self._results(q)
        word = q.new_empty(2, dtype=torch.int64)
        num_bytes = self._workspace()
        memory = q.new_empty(num_bytes, dtype=torch.uint8)
        workspace = ctypes.create_string_buffer(_WORKSPACE.size)
        _WORKSPACE.pack_into(workspace, 0, _WORKSPACE.size, memory.data_ptr(), num_bytes)
        mask = BlockMask(self.shape, visible, word.data_ptr())
        check(
            self._prepared.ranges_forward(
                _FORWARD, mask.address, ctypes.addressof(workspace), memory_of("q", q),
                memory_of("k", k), memory_of("v", v),
                0 if sink is None else memory_of("sink", sink), out.data_ptr(), lse.data_ptr(), 0,
                current_stream(self._device),
            )
        )  # fmt: skip
        return out, lse, word

    def backward_under(self, dout, dlse, q, k, v, out, lse, sink, visible: torch.Tensor):
        """Does what Call.backward does, under the mask of forward_under."""
        other, saved = self._restored(q, k, v, sink, out, lse)
        if other is not self:
            return other.backward_under(dout, dlse, *saved, visible)
        gradients = dq, dk, dv, dsink = self._gradients(q, k, v, sink)
        memory = q.new_empty(self._find_backward_bytes(), dtype=torch.uint8)
        mask = BlockMask(self.shape, visible)
        check(
            self._prepared.ranges_backward(
                _BACKWARD, mask.address, memory_of("q", q), memory_of("k", k), memory_of("v", v),
                0 if sink is None else memory_of("sink", sink),
                memory_of("out", out), memory_of("lse", lse),
                memory_of("the gradient of out", dout),
                0 if dlse is None else memory_of("the gradient of lse", dlse),
                dq.data_ptr(), dk.data_ptr(), dv.data_ptr(),
                0 if dsink is None else dsink.data_ptr(),
                memory.data_ptr(), memory.numel(), current_stream(self._device),
            )
        )  # fmt: skip
        return gradients
