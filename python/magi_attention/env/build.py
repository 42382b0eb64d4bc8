# SPDX-License-Identifier: Apache-2.0
"""What the library was built with, and variables of just-in-time builds: kernels are compiled ahead
of time, so none of these has an effect.
"""

from __future__ import annotations

import functools
import os

from magi_attention._environment import PREFIX, read_flag, read_int, read_text

# Functions that read a variable, in this order.
VARIABLES = (
    "is_no_build_cache", "workspace_base_dir", "is_force_jit_build", "is_build_verbose",
    "is_build_debug", "nvcc_threads",
)  # fmt: skip


def is_no_build_cache() -> bool:
    """MAGI_ATTENTION_NO_BUILD_CACHE."""
    return read_flag(PREFIX + "NO_BUILD_CACHE")


def workspace_base_dir() -> str:
    """MAGI_ATTENTION_WORKSPACE_BASE, default the home directory."""
    return read_text(PREFIX + "WORKSPACE_BASE", os.path.expanduser("~"))


def is_force_jit_build() -> bool:
    """MAGI_ATTENTION_FORCE_JIT_BUILD."""
    return read_flag(PREFIX + "FORCE_JIT_BUILD")


def is_build_verbose() -> bool:
    """MAGI_ATTENTION_BUILD_VERBOSE."""
    return read_flag(PREFIX + "BUILD_VERBOSE")


def is_build_debug() -> bool:
    """MAGI_ATTENTION_BUILD_DEBUG."""
    return read_flag(PREFIX + "BUILD_DEBUG")


def nvcc_threads() -> int:
    """NVCC_THREADS, default 4."""
    return read_int("NVCC_THREADS", 4, 1)


def has_gpu_kernels() -> bool:
    """Whether the loaded library holds kernels for GPUs."""
    return bool(gpu_architectures())


@functools.cache
def gpu_architectures() -> tuple[str, ...]:
    """GPU architectures that the loaded library holds kernels for, such as ("sm_80", "sm_90a")."""
    from magi_attention._native.library import gpu_architectures as found

    return tuple(found().split())
