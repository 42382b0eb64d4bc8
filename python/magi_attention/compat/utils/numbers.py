# SPDX-License-Identifier: Apache-2.0
"""Types of floating point numbers, and seeds."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from magi_attention.common._arguments import check_kind

_NUM_SEEDS = 1 << 32


def is_fp_dtype_at_least(tensor: torch.Tensor, lowest_precision: torch.dtype) -> bool:
    """Whether elements have as many bits as lowest_precision."""
    check_kind("tensor", tensor, torch.Tensor, "a torch.Tensor")
    return torch.finfo(tensor.dtype).bits >= torch.finfo(lowest_precision).bits


def to_higher_fp_dtype(tensor: torch.Tensor, lowest_precision: torch.dtype) -> torch.Tensor:
    """The tensor, or where its elements have fewer bits a copy in lowest_precision."""
    is_enough = is_fp_dtype_at_least(tensor, lowest_precision)
    return tensor if is_enough else tensor.to(lowest_precision)


def max_fp_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """The type of most bits, the first among equals."""
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).bits)


def str2seed(s: str) -> int:
    """A seed that depends on the text alone, 0 to 2^32 - 1."""
    check_kind("s", s, str, "a str")
    return int.from_bytes(hashlib.sha256(s.encode()).digest(), "big") % _NUM_SEEDS


def set_random_seed(seed: int) -> None:
    """Seeds Python's, NumPy's (where it is installed) and torch's generators."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = _numpy_random()
    if numpy is not None:
        numpy.seed(seed)


def _numpy_random():
    try:
        import numpy.random
    except ImportError:
        return None
    return numpy.random


@contextmanager
def sync_rng(seed: int) -> Iterator[None]:
    """All generators start at a seed inside, and go on afterwards as if nothing had been drawn."""
    numpy, state = _numpy_random(), random.getstate()
    numpy_state = None if numpy is None else numpy.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            set_random_seed(seed)
            yield
        finally:
            random.setstate(state)
            if numpy is not None:
                numpy.set_state(numpy_state)
