# SPDX-License-Identifier: Apache-2.0
"""Named ranges for profilers: NVTX where torch has CUDA, and torch.profiler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps

from magi_attention._native.profile import named_range


def add_nvtx_event(event_name: str) -> AbstractContextManager[None]:
    """A range of this name around what runs inside."""
    return named_range(event_name)


def instrument_nvtx(func: Callable) -> Callable:
    """The function with a range of its name around every call."""

    @wraps(func)
    def wrapped(*args, **kwargs):
        with named_range(func.__qualname__):
            return func(*args, **kwargs)

    return wrapped
