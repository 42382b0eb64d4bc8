# SPDX-License-Identifier: Apache-2.0
"""Attention under ranges in device memory: the library makes its list there, and the host reads no
range and waits for nothing.
"""

from __future__ import annotations

import ctypes
import struct

import torch

from magi_attention._native import structs
from magi_attention._native.attention import Call, Options, Runner, TensorStruct, current_stream
from magi_attention._native.library import address_of, check, lib
from magi_attention._native.tensors import memory_of

# struct_size, q_ranges, k_ranges, types, record_capacity, packed_heads
_RANGES = struct.Struct("@NPPPqi0q")
# struct_size, data, size_bytes
_WORKSPACE = struct.Struct("@NPN")
_RANGES_FORWARD = address_of("magi_flex_ranges_forward")
_RANGES_BYTES = address_of("magi_flex_ranges_workspace_bytes")
_RANGES_BACKWARD = address_of("magi_flex_ranges_backward")
_RANGES_BACKWARD_BYTES = address_of("magi_flex_ranges_backward_workspace_bytes")


class _Ranges:
    """A magi_flex_ranges that borrows the tensors."""

    def __init__(self, q_ranges, k_ranges, types) -> None:
        named = (q_ranges, "q_ranges"), (k_ranges, "k_ranges"), (types, "attn_type_map")
        self._tensors = [TensorStruct(*pair) for pair in named if pair[0] is not None]
        addresses = [tensor.address for tensor in self._tensors] + [0] * (types is None)
        self._buffer = ctypes.create_string_buffer(_RANGES.size)
        _RANGES.pack_into(self._buffer, 0, _RANGES.size, *addresses, 0, 0)
        self.address = ctypes.addressof(self._buffer)


class RangesCall(Call):
    """A Call for any number of slices in device memory."""

    def __init__(self, q, k, v, sink, options: Options) -> None:
        super().__init__(Runner(0, 0, 0, None), q, k, v, sink, options)
        self._num_bytes_of: dict[tuple, int] = {}

    def _other(self, q, k, v, sink) -> RangesCall:
        return RangesCall(q, k, v, sink, self._options)

    def _workspace(self, q, ranges: _Ranges, kind: tuple, ask, function: int) -> torch.Tensor:
        """Memory for a call of a kind; ask(function, ranges, size) tells how much."""
        key = (function, *kind)
        num_bytes = self._num_bytes_of.get(key)
        if num_bytes is None:
            size = ctypes.c_size_t()
            check(ask(function, ranges.address, ctypes.addressof(size)))
            num_bytes = self._num_bytes_of[key] = size.value
        return q.new_empty(num_bytes, dtype=torch.uint8)

    def forward_under(self, q, k, v, sink, mask: tuple, is_checked: bool):
        """forward under mask: int32 q_ranges, k_ranges, types or None, without gaps. Range ends
        outside the tensors are clamped, reversed ranges and unknown types are empty; is_checked
        waits for the device and raises ValueError instead.
        """
        results = out, lse, max_logits = self._results(q)
        ranges, prepared = _Ranges(*mask), self._prepared
        memory = self._workspace(q, ranges, _kind(mask), prepared.ranges_bytes, _RANGES_BYTES)
        workspace, stream = _WorkspaceStruct(memory), current_stream(self._device)
        check(
            prepared.ranges_forward(
                _RANGES_FORWARD, ranges.address, workspace.address, memory_of("q", q),
                memory_of("k", k), memory_of("v", v),
                0 if sink is None else memory_of("sink", sink), out.data_ptr(), lse.data_ptr(),
                0 if max_logits is None else max_logits.data_ptr(), stream,
            )
        )  # fmt: skip
        if is_checked:
            _check_report(lib.magi_flex_ranges_report_sync, workspace, stream)
        return results

    def backward_under(self, dout, dlse, q, k, v, out, lse, sink, mask: tuple, is_checked: bool):
        """backward under mask, as forward_under. Gradients become NaN where the mask has more pairs
        of a slice and a k tile than the workspace has room for; is_checked raises ValueError
        instead.
        """
        other, saved = self._restored(q, k, v, sink, out, lse)
        if other is not self:
            return other.backward_under(dout, dlse, *saved, mask, is_checked)
        gradients = dq, dk, dv, dsink = self._gradients(q, k, v, sink)
        ranges, ask = _Ranges(*mask), self._prepared.ranges_backward_bytes
        memory = self._workspace(q, ranges, _kind(mask), ask, _RANGES_BACKWARD_BYTES)
        stream = current_stream(self._device)
        check(
            self._prepared.ranges_backward(
                _RANGES_BACKWARD, ranges.address, memory_of("q", q), memory_of("k", k),
                memory_of("v", v), 0 if sink is None else memory_of("sink", sink),
                memory_of("out", out), memory_of("lse", lse),
                memory_of("the gradient of out", dout),
                0 if dlse is None else memory_of("the gradient of lse", dlse),
                dq.data_ptr(), dk.data_ptr(), dv.data_ptr(),
                0 if dsink is None else dsink.data_ptr(),
                memory.data_ptr(), memory.numel(), stream,
            )
        )  # fmt: skip
        if is_checked:
            report = lib.magi_flex_ranges_backward_report_sync
            _check_report(report, _WorkspaceStruct(memory), stream, is_backward=True)
        return gradients


def _kind(mask: tuple) -> tuple:
    """The values that the size of a workspace depends on besides the tensors."""
    return mask[0].shape[0], mask[2] is None


class _WorkspaceStruct:
    """A magi_workspace that borrows the memory."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._buffer = ctypes.create_string_buffer(_WORKSPACE.size)
        size = memory.numel()
        _WORKSPACE.pack_into(self._buffer, 0, _WORKSPACE.size, memory.data_ptr(), size)
        self.address = ctypes.addressof(self._buffer)


def _check_report(read, workspace: _WorkspaceStruct, stream, is_backward: bool = False) -> None:
    report = structs.RangesReport()
    check(read(workspace.address, report.address, stream))
    if report.bad_slice >= 0:
        field = report.bad_field.decode()
        raise ValueError(
            f"{field} of slice {report.bad_slice} is outside; allowed: 0 <= begin <= end <= rows, "
            "types 0 to 3"
        )
    if is_backward and report.is_overflowing:
        raise ValueError(
            f"q_ranges and k_ranges have {report.num_records} pairs of a slice and 128 keys; "
            "allowed in backward: up to a million, or four for each slice and 128 keys"
        )
