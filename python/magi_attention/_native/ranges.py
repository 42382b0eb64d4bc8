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
    """As Call, for a number of slices in device memory; forward alone."""

    def __init__(self, q, k, v, sink, options: Options) -> None:
        super().__init__(Runner(0, 0, 0, None), q, k, v, sink, options)
        self._num_bytes_of: dict[tuple, int] = {}

    def _workspace_for(self, ranges: _Ranges, kind: tuple) -> int:
        num_bytes = self._num_bytes_of.get(kind)
        if num_bytes is None:
            size = ctypes.c_size_t()
            target = ctypes.addressof(size)
            check(self._prepared.ranges_bytes(_RANGES_BYTES, ranges.address, target))
            num_bytes = self._num_bytes_of[kind] = size.value
        return num_bytes

    def forward_under(self, q, k, v, sink, mask: tuple, is_checked: bool):
        """forward under mask: int32 q_ranges, k_ranges, types or None, without gaps. Range ends
        outside the tensors are clamped, reversed ranges and unknown types are empty; is_checked
        waits for the device and raises ValueError instead.
        """
        results = out, lse, max_logits = self._results(q)
        ranges = _Ranges(*mask)
        num_bytes = self._workspace_for(ranges, (mask[0].shape[0], mask[2] is None))
        memory = q.new_empty(num_bytes, dtype=torch.uint8)
        workspace = ctypes.create_string_buffer(_WORKSPACE.size)
        _WORKSPACE.pack_into(workspace, 0, _WORKSPACE.size, memory.data_ptr(), num_bytes)
        address, stream = ctypes.addressof(workspace), current_stream(self._device)
        check(
            self._prepared.ranges_forward(
                _RANGES_FORWARD, ranges.address, address, memory_of("q", q),
                memory_of("k", k), memory_of("v", v),
                0 if sink is None else memory_of("sink", sink), out.data_ptr(), lse.data_ptr(),
                0 if max_logits is None else max_logits.data_ptr(), stream,
            )
        )  # fmt: skip
        if is_checked:
            _check_report(address, stream)
        return results


def _check_report(workspace: int, stream: int | None) -> None:
    report = structs.RangesReport()
    check(lib.magi_flex_ranges_report_sync(workspace, report.address, stream))
    if report.bad_slice >= 0:
        field = report.bad_field.decode()
        raise ValueError(
            f"{field} of slice {report.bad_slice} is outside; allowed: 0 <= begin <= end <= rows, "
            "types 0 to 3"
        )
