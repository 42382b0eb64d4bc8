# SPDX-License-Identifier: Apache-2.0
"""MAGI_ATTENTION_KERNEL_BACKEND=sdpa on every rank, against dense float64 attention."""

from __future__ import annotations

import os

import torch

import dense
from magi_attention import api
from magi_attention.backends import torch_attention
from pipeline_cases import Case, check_attention, make_key, make_tensors

PREFIX = "MAGI_ATTENTION_"


def by_torch(group, case: Case, block: int, name: str = "sdpa") -> None:
    mask = dense.masks(case.rows)[case.mask]
    kept, torch_attention._BLOCK_ELEMENTS = torch_attention._BLOCK_ELEMENTS, block
    os.environ[PREFIX + "KERNEL_BACKEND"] = name
    try:
        key = make_key(mask, case, group)
        assert key._local_shape.backend == torch_attention.NAME
        check_attention(case.mask, key, mask, case, make_tensors(case))
    finally:
        del os.environ[PREFIX + "KERNEL_BACKEND"]
        torch_attention._BLOCK_ELEMENTS = kept
    assert make_key(mask, case, group)._local_shape.backend is None


def in_another_precision(group) -> None:
    """PRECISION casts q, k, v; the backend takes what comes."""
    case = Case(rows=60)
    for precision in ("fp32", "fp64"):
        os.environ[PREFIX + "KERNEL_BACKEND"], os.environ[PREFIX + "PRECISION"] = "sdpa", precision
        try:
            key = make_key(dense.masks(60)["causal"], case, group)
            q, k, v = (api.dispatch(t.bfloat16(), key) for t in make_tensors(case)[:3])
            out, meta = api.calc_attn(q, k, v, key)
        finally:
            del os.environ[PREFIX + "KERNEL_BACKEND"], os.environ[PREFIX + "PRECISION"]
        wide = torch.float64 if precision == "fp64" else torch.float32
        assert out.dtype == torch.bfloat16 and meta.lse.dtype == wide
