# SPDX-License-Identifier: Apache-2.0
"""Structs of the C interface that are not on a hot path."""

from __future__ import annotations

import ctypes
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


_KINDS = {
    "z": c_size_t, "p": c_void_p, "q": c_int64, "i": c_int32, "u": c_uint64, "d": c_double,
    "s": ctypes.c_char_p, "I": POINTER(c_int32), "Q": POINTER(c_int64),
}  # fmt: skip


def fields(text: str, **others: type) -> list[tuple[str, type]]:
    """_fields_ of "kind name, kind name, ...", with kinds of _KINDS or others."""
    kinds, pairs = _KINDS | others, (part.split() for part in text.split(","))
    return [(name, kinds[kind]) for kind, name in pairs]


class Sized(ctypes.Structure):
    """A struct whose first field is its own size."""

    def __init__(self, **fields) -> None:
        super().__init__(struct_size=ctypes.sizeof(self), **fields)

    @classmethod
    def filled(cls, fill):
        """The struct as a function of the library fills it: with its defaults."""
        made = cls()
        fill(made.address)
        return made

    def __setattr__(self, name: str, value) -> None:
        if isinstance(value, int) and not 0 <= value < 1 << 31:
            check_bits(name, value, dict(self._fields_).get(name))
        super().__setattr__(name, value)

    @property
    def address(self) -> int:
        return ctypes.addressof(self)


class RangeLists(Sized):
    _fields_ = fields(
        "z struct_size, p q_ranges, q num_q_ranges, p k_ranges, q num_k_ranges, p types, "
        "q num_types, i rows_q, i rows_k"
    )


class DocumentRule(Sized):
    _fields_ = fields(
        "z struct_size, i is_causal, i window_left, i window_right, i num_global, i has_rows_above"
    )


class FormField(ctypes.Structure):
    _fields_ = fields("s name, p numbers, q num_numbers, p row_offsets, q num_row_offsets")


class WindowMask(Sized):
    _fields_ = fields(
        "z struct_size, i q_begin, i q_end, i k_begin, i k_end, i left, i right, i rows_q, i rows_k"
    )


class PlacementConfig(Sized):
    _fields_ = fields(
        "z struct_size, s algorithm, i chunk_size, i min_chunks_per_rank, i uneven_shard, "
        "d token_tolerance, u seed"
    )


class PlacementInfo(Sized):
    _fields_ = fields(
        "z struct_size, i num_rows, i chunk_size, i num_ranks, i num_chunks, I chunk_rank"
    )


class PlanConfig(Sized):
    _fields_ = fields(
        "z struct_size, i num_ranks, i num_heads_q, i num_heads_kv, i head_dim_qk, i head_dim_v, "
        "i element_bytes, i overlap_degree, i stage_mode, i min_stage_rows, i work, "
        "d flops_per_second, d backward_flops_per_second, d bytes_per_second, "
        "d memory_bytes_per_second, d seconds_per_transfer, d seconds_per_launch, p placement, "
        "p placement_k, i devices_per_node, d network_bytes_per_second, "
        "d network_seconds_per_transfer, i head_shares, i max_runs, d seconds_per_run, "
        "q max_exchange_bytes"
    )


class PlanReport(Sized):
    _fields_ = fields(
        "z struct_size, i num_ranks, i num_stages, u digest, Q rank_area, Q rank_rows, "
        "Q remote_rows, Q pair_bytes, d balance, q total_bytes, q lower_bound_bytes, "
        "q ring_bytes, d forward_seconds, d backward_seconds, d exposed_comm_seconds, "
        "i num_heads_q, i num_heads_kv, i head_dim_qk, i head_dim_v, Q rank_memory, "
        "i num_head_shares, Q rank_runs"
    )


class CommOptions(Sized):
    _fields_ = fields("z struct_size, q deadline_ms, z window_bytes")


class Bootstrap(Sized):
    _fields_ = fields("z struct_size, i rank, i num_ranks, p allgather, p context")


class NcclOptions(Sized):
    _fields_ = fields("z struct_size, q deadline_ms, i max_ctas, s library")


class CommCounters(Sized):
    _fields_ = fields("z struct_size, q messages, q casts, q reduces, p bytes_to_peer")


class PeerRows(ctypes.Structure):
    _fields_ = fields("i peer, i row, i num_rows")


class ExchangeArgs(Sized):
    _fields_ = fields(
        "z struct_size, p inputs, p outputs, i num_tensors, i kind, R owned, q num_owned, "
        "R needed, q num_needed, u plan_digest, i stage, p stream",
        R=POINTER(PeerRows),
    )


class UndispatchGradient(Sized):
    _fields_ = fields("z struct_size, p global_gradient, p local_gradient, i mode")


class RollArgs(Sized):
    _fields_ = fields("z struct_size, p local, p out, i num_valid_rows, q shift")


class RangesReport(Sized):
    _fields_ = fields(
        "z struct_size, q bad_slice, t bad_field, q num_records, i is_overflowing, i packed_heads",
        t=ctypes.c_char * 16,
    )
