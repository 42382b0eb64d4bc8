# SPDX-License-Identifier: Apache-2.0
"""Variables of the run as a whole."""

from __future__ import annotations

import logging

from magi_attention._environment import (
    PREFIX,
    is_set,
    read_flag,
    read_int,
    read_renamed_flag,
    read_text,
    warn_of_old,
)
from magi_attention.common.enum import MagiAttentionKernelBackend, MagiAttentionPrecision

# Functions that read a variable, in this order.
VARIABLES = (
    "log_level", "is_sanity_check_enable", "is_flatten_head_groups_enable", "kernel_backend",
    "precision", "is_cuda_device_max_connections_one", "is_deterministic_mode_enable",
    "is_profile_mode_enable", "is_auto_range_merge_enable", "is_range_merge_enable",
    "is_cat_gqa_enable", "dist_attn_backward_hide_tail_reduce", "dist_attn_runtime_dict_size",
    "min_chunks_per_rank", "is_cpp_backend_enable", "cost_file",
)  # fmt: skip


_LOG_LEVELS = {
    name: getattr(logging, name.upper())
    for name in ("debug", "info", "warn", "warning", "error", "critical")
}


def log_level() -> int:
    """MAGI_ATTENTION_LOG_LEVEL, default WARN, as a number of Python's logging: what the logger
    "magi_attention" lets through. Read when a key is made.
    """
    return _LOG_LEVELS[read_text(PREFIX + "LOG_LEVEL", "warn", tuple(_LOG_LEVELS))]


def is_sanity_check_enable() -> bool:
    """MAGI_ATTENTION_SANITY_CHECK: check every plan after making it."""
    return read_flag(PREFIX + "SANITY_CHECK")


def is_flatten_head_groups_enable() -> bool:
    """MAGI_ATTENTION_FLATTEN_HEAD_GROUPS: plans whose `DistAttnConfig.work` is None share out kv
    heads to ranks ("heads").
    """
    return read_flag(PREFIX + "FLATTEN_HEAD_GROUPS")


def kernel_backend() -> MagiAttentionKernelBackend:
    """MAGI_ATTENTION_KERNEL_BACKEND: ffa (default), sdpa, sdpa_ol, fa4, cutedsl, cudnn, flex or
    mma; docs/backends.md says what each does. The older MAGI_ATTENTION_SDPA_BACKEND and
    MAGI_ATTENTION_FA4_BACKEND are read where it is not set.
    """
    names = tuple(backend.value for backend in MagiAttentionKernelBackend)
    new = PREFIX + "KERNEL_BACKEND"
    name = read_text(new, "ffa", names)
    for old, value in ((PREFIX + "SDPA_BACKEND", "sdpa"), (PREFIX + "FA4_BACKEND", "fa4")):
        if not is_set(old):
            continue
        is_on = read_flag(old)
        warn_of_old(f"{old} is deprecated; " + (f"use {new}={value}" if is_on else "leave it out"))
        if not is_on:
            continue
        if name not in ("ffa", value) or (is_set(new) and name != value):
            raise ValueError(f"{old} is 1 while the backend is {name}; allowed: one of them")
        name = value
    return MagiAttentionKernelBackend(name)


def precision() -> MagiAttentionPrecision | None:
    """MAGI_ATTENTION_PRECISION: bf16, fp16, fp32 or fp64, the type that q, k, v are cast to; None
    where it is not set.
    """
    names = tuple(kind.value for kind in MagiAttentionPrecision)
    name = read_text(PREFIX + "PRECISION", "", names)
    return MagiAttentionPrecision(name) if name else None


def is_cuda_device_max_connections_one() -> bool:
    """CUDA_DEVICE_MAX_CONNECTIONS=1; no effect."""
    return read_int("CUDA_DEVICE_MAX_CONNECTIONS", 8, 1) == 1


def is_deterministic_mode_enable() -> bool:
    """MAGI_ATTENTION_DETERMINISTIC_MODE: the gradient of q has the same bits in every call on a
    GPU, as all other results have without it.
    """
    return read_flag(PREFIX + "DETERMINISTIC_MODE")


def is_profile_mode_enable() -> bool:
    """MAGI_ATTENTION_PROFILE_MODE: forward and backward of calc_attn are ranges for profilers, NVTX
    where torch has CUDA. Read when a plan is bound.
    """
    return read_flag(PREFIX + "PROFILE_MODE")


def is_range_merge_enable() -> bool:
    """MAGI_ATTENTION_RANGE_MERGE, or the older MAGI_ATTENTION_AUTO_RANGE_MERGE; no effect: slices
    of one query tile are always joined.
    """
    return read_renamed_flag(PREFIX + "AUTO_RANGE_MERGE", PREFIX + "RANGE_MERGE")


is_auto_range_merge_enable = is_range_merge_enable  # its name of release 1.1.1


def is_cat_gqa_enable() -> bool:
    """MAGI_ATTENTION_CATGQA; no effect."""
    return read_flag(PREFIX + "CATGQA")


def dist_attn_backward_hide_tail_reduce() -> bool:
    """MAGI_ATTENTION_BWD_HIDE_TAIL_REDUCE; no effect."""
    return read_flag(PREFIX + "BWD_HIDE_TAIL_REDUCE")


def dist_attn_runtime_dict_size() -> int:
    """MAGI_ATTENTION_DIST_ATTN_RUNTIME_DICT_SIZE: keys kept per group, default 1000."""
    return read_int(PREFIX + "DIST_ATTN_RUNTIME_DICT_SIZE", 1000, 1)


def min_chunks_per_rank() -> int:
    """MAGI_ATTENTION_MIN_CHUNKS_PER_RANK, default 8: bounds the chunk size from above."""
    return read_int(PREFIX + "MIN_CHUNKS_PER_RANK", 8, 1)


def cost_file() -> str:
    """MAGI_ATTENTION_COST_FILE: the path of a cost file (docs/calibration.md), with whose constants
    plans are made; empty: the library's own. A process reads a file once.
    """
    return read_text(PREFIX + "COST_FILE", "")


def is_cpp_backend_enable() -> bool:
    """MAGI_ATTENTION_CPP_BACKEND; no effect: planning is always C++."""
    return read_flag(PREFIX + "CPP_BACKEND")
