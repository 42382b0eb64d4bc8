# SPDX-License-Identifier: Apache-2.0
"""Named ranges for profilers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def named_range(name: str) -> Iterator[None]:
    """A range of this name around what runs inside: for torch.profiler, and NVTX where torch has
    CUDA.
    """
    has_nvtx = torch.cuda.is_available()
    if has_nvtx:
        torch.cuda.nvtx.range_push(name)
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        if has_nvtx:
            torch.cuda.nvtx.range_pop()
