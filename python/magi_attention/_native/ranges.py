# SPDX-License-Identifier: Apache-2.0
"""Attention under ranges in device memory: the library makes its list there, and the host reads no
range and waits for nothing.
"""

from __future__ import annotations

import ctypes
import struct

import torch

from magi_attention._native import structs
from magi_attention._native.attention import (
    WORKSPACE,
    Call,
    Options,
    Runner,
    TensorStruct,
    current_stream,
)
from magi_attention._native.library import check, lib

# struct_size, q_ranges, k_ranges, types, record_capacity, packed_heads
_RANGES = struct.Struct("@NPPPqi0q")


class _Ranges:
    """A magi_flex_ranges that borrows the tensors."""

    def __init__(self, q_ranges, k_ranges, types) -> None:
        self._tensors = [TensorStruct(t) for t in (q_ranges, k_ranges, types) if t is not None]
        addresses = [tensor.address for tensor in self._tensors] + [0] * (types is None)
        self._buffer = ctypes.create_string_buffer(_RANGES.size)
        _RANGES.pack_into(self._buffer, 0, _RANGES.size, *addresses, 0, 0)
        self.address = ctypes.addressof(self._buffer)


class RangesCall(Call):
    """As Call, for a number of slices in device memory; forward alone."""

    def __init__(self, q, k, v, sink, options: Options) -> None:
        super().__init__(Runner(None, None, 0, None), q, k, v, sink, options)
        self._num_bytes: dict[tuple, int] = {}

    def _workspace_bytes(self, ranges: _Ranges, block, kind: tuple) -> int:
        num_bytes = self._num_bytes.get(kind)
        if num_bytes is None:
            size = ctypes.c_size_t()
            address = ctypes.addressof(size)
            check(lib.magi_flex_ranges_workspace_bytes(ranges.address, block.inputs, address))
            num_bytes = self._num_bytes[kind] = size.value
        return num_bytes

    def forward_under(self, q, k, v, sink, mask: tuple, is_checked: bool):
        """forward under mask: int32 q_ranges, k_ranges, types or None, without gaps. Range ends
        outside the tensors are clamped, reversed ranges and unknown types are empty; is_checked
        waits for the device and raises ValueError instead.
        """
        block, results = self._fill(q, k, v, sink)
        ranges = _Ranges(*mask)
        num_bytes = self._workspace_bytes(ranges, block, (mask[0].shape[0], mask[2] is None))
        memory = torch.empty(num_bytes, dtype=torch.uint8, device=q.device)
        workspace = ctypes.create_string_buffer(WORKSPACE.size)
        WORKSPACE.pack_into(workspace, 0, WORKSPACE.size, memory.data_ptr(), num_bytes)
        address, stream = ctypes.addressof(workspace), current_stream(self._device)
        check(
            lib.magi_flex_ranges_forward(
                ranges.address, block.inputs, block.result, address, stream
            )
        )
        if is_checked:
            _check_report(address, stream)
        self._blocks.append(block)
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
