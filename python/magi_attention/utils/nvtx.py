# SPDX-License-Identifier: Apache-2.0
"""Named ranges for profilers: NVTX where torch has CUDA, and torch.profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

import torch


@contextmanager
def add_nvtx_event(event_name: str) -> Iterator[None]:
    """A range of this name around what runs inside."""
    has_nvtx = torch.cuda.is_available()
    if has_nvtx:
        torch.cuda.nvtx.range_push(event_name)
    try:
        with torch.profiler.record_function(event_name):
            yield
    finally:
        if has_nvtx:
            torch.cuda.nvtx.range_pop()


def instrument_nvtx(func: Callable) -> Callable:
    """The function with a range of its name around every call."""

    @wraps(func)
    def wrapped(*args, **kwargs):
        with add_nvtx_event(func.__qualname__):
            return func(*args, **kwargs)

    return wrapped
