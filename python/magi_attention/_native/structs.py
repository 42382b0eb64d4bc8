# SPDX-License-Identifier: Apache-2.0
"""Structs of the C interface that are not on a hot path."""

from __future__ import annotations

import ctypes
from array import array
from ctypes import POINTER, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p

# The least number and the first beyond the greatest one, by ctypes' types.
_BITS = {
    c_int32: (-(1 << 31), 1 << 31),
    c_int64: (-(1 << 63), 1 << 63),
    c_size_t: (0, 1 << 64),
    c_uint64: (0, 1 << 64),
}


def check_bits(name: str, value: int, kind) -> None:
    """ValueError for a number whose high bits ctypes would drop in silence."""
    lowest, end = _BITS.get(kind, (value, value + 1))
    if not lowest <= value < end:
        raise ValueError(f"{name} is {value}; allowed: {lowest} to {end - 1}")


class Sized(ctypes.Structure):
    """A struct whose first field is its own size."""

    def __init__(self, **fields) -> None:
        super().__init__(struct_size=ctypes.sizeof(self), **fields)

    def __setattr__(self, name: str, value) -> None:
        if isinstance(value, int) and not 0 <= value < 1 << 31:
            check_bits(name, value, dict(self._fields_).get(name))
        super().__setattr__(name, value)

    @property
    def address(self) -> int:
        return ctypes.addressof(self)


class RangeLists(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q_ranges", c_void_p),
        ("num_q_ranges", c_int64),
        ("k_ranges", c_void_p),
        ("num_k_ranges", c_int64),
        ("types", c_void_p),
        ("num_types", c_int64),
        ("rows_q", c_int32),
        ("rows_k", c_int32),
    ]


class DocumentRule(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("is_causal", c_int32),
        ("window_left", c_int32),
        ("window_right", c_int32),
        ("num_global", c_int32),
        ("has_rows_above", c_int32),
    ]


class FormField(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("numbers", c_void_p),
        ("num_numbers", c_int64),
        ("row_offsets", c_void_p),
        ("num_row_offsets", c_int64),
    ]


class WindowMask(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q_begin", c_int32),
        ("q_end", c_int32),
        ("k_begin", c_int32),
        ("k_end", c_int32),
        ("left", c_int32),
        ("right", c_int32),
        ("rows_q", c_int32),
        ("rows_k", c_int32),
    ]


class PlacementConfig(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("algorithm", ctypes.c_char_p),
        ("chunk_size", c_int32),
        ("min_chunks_per_rank", c_int32),
        ("uneven_shard", c_int32),
        ("token_tolerance", c_double),
        ("seed", c_uint64),
    ]


class PlacementInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_rows", c_int32),
        ("chunk_size", c_int32),
        ("num_ranks", c_int32),
        ("num_chunks", c_int32),
        ("chunk_rank", POINTER(c_int32)),
    ]


class PlanConfig(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_ranks", c_int32),
        ("num_heads_q", c_int32),
        ("num_heads_kv", c_int32),
        ("head_dim_qk", c_int32),
        ("head_dim_v", c_int32),
        ("element_bytes", c_int32),
        ("overlap_degree", c_int32),
        ("stage_mode", c_int32),
        ("min_stage_rows", c_int32),
        ("work", c_int32),
        ("flops_per_second", c_double),
        ("backward_flops_per_second", c_double),
        ("bytes_per_second", c_double),
        ("memory_bytes_per_second", c_double),
        ("seconds_per_transfer", c_double),
        ("seconds_per_launch", c_double),
        ("placement", c_void_p),
        ("placement_k", c_void_p),
        ("devices_per_node", c_int32),
        ("network_bytes_per_second", c_double),
        ("network_seconds_per_transfer", c_double),
        ("head_shares", c_int32),
    ]


class PlanReport(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_ranks", c_int32),
        ("num_stages", c_int32),
        ("digest", c_uint64),
        ("rank_area", POINTER(c_int64)),
        ("rank_rows", POINTER(c_int64)),
        ("remote_rows", POINTER(c_int64)),
        ("pair_bytes", POINTER(c_int64)),
        ("balance", c_double),
        ("total_bytes", c_int64),
        ("lower_bound_bytes", c_int64),
        ("ring_bytes", c_int64),
        ("forward_seconds", c_double),
        ("backward_seconds", c_double),
        ("exposed_comm_seconds", c_double),
        ("num_heads_q", c_int32),
        ("num_heads_kv", c_int32),
        ("head_dim_qk", c_int32),
        ("head_dim_v", c_int32),
        ("rank_memory", POINTER(c_int64)),
        ("num_head_shares", c_int32),
    ]


class CommOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("deadline_ms", c_int64),
        ("window_bytes", c_size_t),
    ]


class Bootstrap(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("num_ranks", c_int32),
        ("allgather", c_void_p),
        ("context", c_void_p),
    ]


class NcclOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("deadline_ms", c_int64),
        ("max_ctas", c_int32),
        ("library", ctypes.c_char_p),
    ]


class CommCounters(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("messages", c_int64),
        ("casts", c_int64),
        ("reduces", c_int64),
        ("bytes_to_peer", c_void_p),
    ]


class PeerRows(ctypes.Structure):
    _fields_ = [("peer", c_int32), ("row", c_int32), ("num_rows", c_int32)]


class ExchangeArgs(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("inputs", c_void_p),
        ("outputs", c_void_p),
        ("num_tensors", c_int32),
        ("kind", c_int32),
        ("owned", POINTER(PeerRows)),
        ("num_owned", c_int64),
        ("needed", POINTER(PeerRows)),
        ("num_needed", c_int64),
        ("plan_digest", c_uint64),
        ("stage", c_int32),
        ("stream", c_void_p),
    ]


class UndispatchGradient(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("global_gradient", c_void_p),
        ("local_gradient", c_void_p),
        ("mode", c_int32),
    ]


class RollArgs(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("local", c_void_p),
        ("out", c_void_p),
        ("num_valid_rows", c_int32),
        ("shift", c_int64),
    ]


class RangesReport(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bad_slice", c_int64),
        ("bad_field", ctypes.c_char * 16),
        ("num_records", c_int64),
        ("is_overflowing", c_int32),
        ("packed_heads", c_int32),
    ]


def bytes_to_int64(buffer: int) -> list[int]:
    """The int64 values of a magi_buffer, which is destroyed."""
    from magi_attention._native.library import bytes_of

    return list(array("q", bytes_of(buffer)))
