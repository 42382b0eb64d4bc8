# SPDX-License-Identifier: Apache-2.0
"""The backend of torch's matrix products."""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch

import dense
from magi_attention import api
from magi_attention.api import flex_flash_attn_func
from magi_attention.backends import torch_attention
from pipeline_cases import Case, check_attention, make_key, make_tensors
from ranks import over

PREFIX = "MAGI_ATTENTION_"


def by_torch(group, case: Case, block: int, name: str = "sdpa") -> None:
    mask = dense.masks(case.rows)[case.mask]
    with (
        mock.patch.object(torch_attention, "_BLOCK_ELEMENTS", block),
        mock.patch.dict(os.environ, {PREFIX + "KERNEL_BACKEND": name}),
    ):
        key = make_key(mask, case, group)
        assert key._local_shape.backend == torch_attention.NAME
        check_attention(case.mask, key, mask, case, make_tensors(case))
    assert make_key(mask, case, group)._local_shape.backend is None


@over(1, 2)
def test_precision(group):
    """PRECISION casts q, k, v; the backend takes what comes."""
    case = Case(rows=60)
    for precision in ("fp32", "fp64"):
        os.environ[PREFIX + "KERNEL_BACKEND"], os.environ[PREFIX + "PRECISION"] = "sdpa", precision
        key = make_key(dense.masks(60)["causal"], case, group)
        q, k, v = (api.dispatch(t.bfloat16(), key) for t in make_tensors(case)[:3])
        out, meta = api.calc_attn(q, k, v, key)
        wide = torch.float64 if precision == "fp64" else torch.float32
        assert out.dtype == torch.bfloat16 and meta.lse.dtype == wide


@over(1, 3)
@pytest.mark.parametrize("block", [1 << 24, 5000], ids=["one_block", "many_blocks"])
@pytest.mark.parametrize("mask", ["causal", "varlen_full", "block_causal_q_overlap"])
def test_masks(group, mask, block):
    by_torch(group, Case(mask=mask, rows=131), block)


@over(1, 2)
@pytest.mark.parametrize("per_row", [False, True])
def test_options(group, per_row):
    case = Case(
        rows=97, sinks=2, sink_per_row=per_row, softcap=3.0, scale=0.3, with_lse_gradient=True
    )
    by_torch(group, case, 3000, "sdpa_ol")


@over(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_types(group, dtype):
    by_torch(group, Case(rows=131, dtype=dtype, degree=2), 5000)


@pytest.mark.parametrize("layout", ["sh", "ssh"])
def test_sinks_of_nothing(monkeypatch, layout):
    """In rows without keys, too."""
    monkeypatch.setenv("MAGI_ATTENTION_KERNEL_BACKEND", "sdpa")
    ranges = torch.tensor([[0, 2]], dtype=torch.int32)
    q, k, v = (torch.randn(4, 2, 8, requires_grad=True) for _ in range(3))
    sink = torch.full((1, 2) if layout == "sh" else (4, 1, 2), -torch.inf, requires_grad=True)
    out, meta = flex_flash_attn_func(q, k, v, ranges, ranges, sink=sink, sink_layout=layout)
    assert meta.lse[2:].isneginf().all()
    (out.sum() + meta.lse[:2].sum()).backward()
    assert torch.equal(sink.grad, torch.zeros_like(sink))
