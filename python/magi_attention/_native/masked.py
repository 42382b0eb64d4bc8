# SPDX-License-Identifier: Apache-2.0
"""Attention on a GPU under ranges or under a mask of blocks in its memory: the library makes its
lists there, and the host reads no entry and waits for nothing.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, ClassVar, NamedTuple

import torch

from magi_attention._native import structs
from magi_attention._native.attention import Call, Options, Runner, TensorStruct, current_stream
from magi_attention._native.library import address_of, check, lib, told
from magi_attention._native.tensors import dense_memory_of, memory_of

# struct_size, q_ranges, k_ranges, types, record_capacity, packed_heads
_RANGES = struct.Struct("@NPPPqi0q")
# struct_size, visible, heads, q_block, k_block, is_causal, max_blocks, max_runs, error_word
_BLOCKS = struct.Struct("@NPiiiiqqP")
# struct_size, data, size_bytes
_WORKSPACE = struct.Struct("@NPN")
_TAKES_BLOCKS = address_of("magi_block_attention_takes")


class Workspace:
    """A magi_workspace that borrows the memory."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self._buffer = ctypes.create_string_buffer(_WORKSPACE.size)
        size = memory.numel()
        _WORKSPACE.pack_into(self._buffer, 0, _WORKSPACE.size, memory.data_ptr(), size)
        self.address = ctypes.addressof(self._buffer)


class Functions(NamedTuple):
    """Addresses of the library's functions for masks of one form."""

    forward: int
    forward_bytes: int
    backward: int
    backward_bytes: int

    @staticmethod
    def of(prefix: str) -> Functions:
        """Those whose names begin so."""
        ends = "forward", "workspace_bytes", "backward", "backward_workspace_bytes"
        return Functions(*(address_of(f"{prefix}_{end}") for end in ends))


class MaskedCall(Call):
    """A Call for masks of one form, structs of the library that have an address. kind, beside such
    a mask: what the sizes of workspaces depend on besides the tensors. backend: that of Runner.
    """

    functions: ClassVar[Functions]

    def __init__(
        self, q, k, v, sink, options: Options, backend: ctypes.Array | None = None
    ) -> None:
        super().__init__(Runner(0, 0, 0, None, backend=backend), q, k, v, sink, options)
        self._num_bytes_of: dict[tuple, int] = {}

    def _workspace(self, q, mask, kind: Any, ask, function: int) -> Workspace:
        """Memory for a call; ask(function, mask, size) tells how much."""
        num_bytes = self._num_bytes_of.get((function, kind))
        if num_bytes is None:
            num_bytes = told(ctypes.c_size_t, ask, function, mask.address)
            self._num_bytes_of[function, kind] = num_bytes
        return Workspace(q.new_empty(num_bytes, dtype=torch.uint8))

    def _run_forward(self, q, k, v, sink, mask, kind: Any) -> tuple[tuple, Workspace]:
        """Does what Call.forward does, under the mask; and the workspace."""
        results = out, lse, max_logits = self._results(q)
        prepared, functions = self._prepared, self.functions
        workspace = self._workspace(q, mask, kind, prepared.ranges_bytes, functions.forward_bytes)
        check(
            prepared.ranges_forward(
                functions.forward, mask.address, workspace.address, memory_of("q", q),
                memory_of("k", k), memory_of("v", v),
                0 if sink is None else memory_of("sink", sink), out.data_ptr(), lse.data_ptr(),
                0 if max_logits is None else max_logits.data_ptr(), current_stream(self._device),
            )
        )  # fmt: skip
        return results, workspace

    def _run_backward(self, dout, dlse, q, k, v, out, lse, sink, mask, kind):
        """Does what Call.backward does, under the mask; and the workspace."""
        other, saved = self._restored(q, k, v, sink, out, lse)
        if other is not self:
            return other._run_backward(dout, dlse, *saved, mask, kind)
        gradients = dq, dk, dv, dsink = self._gradients(q, k, v, sink)
        prepared, functions = self._prepared, self.functions
        ask = prepared.ranges_backward_bytes
        workspace = self._workspace(q, mask, kind, ask, functions.backward_bytes)
        check(
            prepared.ranges_backward(
                functions.backward, mask.address, memory_of("q", q), memory_of("k", k),
                memory_of("v", v), 0 if sink is None else memory_of("sink", sink),
                memory_of("out", out), memory_of("lse", lse),
                memory_of("the gradient of out", dout),
                0 if dlse is None else memory_of("the gradient of lse", dlse),
                dq.data_ptr(), dk.data_ptr(), dv.data_ptr(),
                0 if dsink is None else dsink.data_ptr(),
                workspace.memory.data_ptr(), workspace.memory.numel(),
                current_stream(self._device),
            )
        )  # fmt: skip
        return gradients, workspace


class _Ranges:
    """A magi_flex_ranges that borrows the tensors."""

    def __init__(self, q_ranges, k_ranges, types) -> None:
        named = (q_ranges, "q_ranges"), (k_ranges, "k_ranges"), (types, "attn_type_map")
        self._tensors = [TensorStruct(*pair) for pair in named if pair[0] is not None]
        addresses = [tensor.address for tensor in self._tensors] + [0] * (types is None)
        self._buffer = ctypes.create_string_buffer(_RANGES.size)
        _RANGES.pack_into(self._buffer, 0, _RANGES.size, *addresses, 0, 0)
        self.address = ctypes.addressof(self._buffer)


class RangesCall(MaskedCall):
    """A Call for any number of slices in device memory."""

    functions = Functions.of("magi_flex_ranges")

    def _other(self, q, k, v, sink) -> RangesCall:
        return RangesCall(q, k, v, sink, self._options, self._runner.backend)

    def forward_under(self, q, k, v, sink, mask: tuple, is_checked: bool):
        """forward under mask: int32 q_ranges, k_ranges, types or None, without gaps. Range ends
        outside the tensors are clamped, reversed ranges and unknown types are empty; is_checked
        waits for the device and raises ValueError instead.
        """
        results, workspace = self._run_forward(q, k, v, sink, _Ranges(*mask), _kind(mask))
        if is_checked:
            self._check_report(lib.magi_flex_ranges_report_sync, workspace)
        return results

    def backward_under(self, dout, dlse, q, k, v, out, lse, sink, mask: tuple, is_checked: bool):
        """backward under mask, as forward_under. Gradients become NaN where the mask has more pairs
        of a slice and a k tile than the workspace has room for; is_checked raises ValueError
        instead.
        """
        given = dout, dlse, q, k, v, out, lse, sink
        gradients, workspace = self._run_backward(*given, _Ranges(*mask), _kind(mask))
        if is_checked:
            self._check_report(lib.magi_flex_ranges_backward_report_sync, workspace, True)
        return gradients

    def _check_report(self, read, workspace: Workspace, is_backward: bool = False) -> None:
        report = structs.RangesReport()
        check(read(workspace.address, report.address, current_stream(self._device)))
        if report.bad_slice >= 0:
            field = report.bad_field.decode()
            raise ValueError(
                f"{field} of slice {report.bad_slice} is outside; allowed: 0 <= begin <= end <= "
                "rows, types 0 to 3"
            )
        if is_backward and report.is_overflowing:
            raise ValueError(
                f"q_ranges and k_ranges have {report.num_records} pairs of a slice and a tile of "
                "keys; allowed in backward: up to a million, or four for each slice and each tile"
            )


def _kind(mask: tuple) -> tuple:
    return mask[0].shape[0], mask[2] is None


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
        self._buffer = ctypes.create_string_buffer(_BLOCKS.size)
        data = 0 if visible is None else dense_memory_of("block_mask", visible)
        sizes = shape.heads, shape.q_block, shape.k_block, shape.is_causal
        room = shape.max_blocks, shape.max_runs
        _BLOCKS.pack_into(self._buffer, 0, _BLOCKS.size, data, *sizes, *room, error_word)
        self.address = ctypes.addressof(self._buffer)


class BlockCall(MaskedCall):
    """A Call for masks of one shape. max_logits are refused."""

    functions = Functions.of("magi_block_attention")

    def __init__(self, q, k, v, sink, shape: BlockShape, options: Options) -> None:
        super().__init__(q, k, v, sink, options)
        self.shape = shape

    def is_taken(self) -> bool:
        """Whether the library's kernels for blocks take such calls."""
        mask = BlockMask(self.shape, None)  # lives as long as its address is in use
        ask = self._prepared.ranges_bytes
        return told(ctypes.c_int32, ask, _TAKES_BLOCKS, mask.address) != 0

    def _other(self, q, k, v, sink) -> BlockCall:
        return BlockCall(q, k, v, sink, self.shape, self._options)

    def forward_under(self, q, k, v, sink, visible: torch.Tensor):
        """out, lse and the error word, int64 [2]: how many runs or blocks are beyond the room, or
        lists with entries above 254 (0: all results hold, else they are NaN), and -1. visible:
        that of BlockMask.
        """
        word = q.new_empty(2, dtype=torch.int64)
        mask = BlockMask(self.shape, visible, word.data_ptr())
        (out, lse, _), _ = self._run_forward(q, k, v, sink, mask, None)
        return out, lse, word

    def backward_under(self, dout, dlse, q, k, v, out, lse, sink, visible: torch.Tensor):
        """Does what Call.backward does, under the mask of forward_under."""
        mask = BlockMask(self.shape, visible)
        return self._run_backward(dout, dlse, q, k, v, out, lse, sink, mask, None)[0]
