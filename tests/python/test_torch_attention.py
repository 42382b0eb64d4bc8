# SPDX-License-Identifier: Apache-2.0
"""The backend of torch's matrix products."""

import pytest
import torch

import torch_attention_cases as cases
from magi_attention.api import flex_flash_attn_func
from pipeline_cases import Case

BLOCKS = pytest.mark.parametrize("block", [1 << 24, 5000], ids=["one_block", "many_blocks"])


@BLOCKS
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("mask", ["causal", "varlen_full", "block_causal_q_overlap"])
def test_masks(ranks, size, mask, block):
    ranks.run(size, cases.by_torch, Case(mask=mask, rows=131), block)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("per_row", [False, True])
def test_options(ranks, size, per_row):
    case = Case(
        rows=97, sinks=2, sink_per_row=per_row, softcap=3.0, scale=0.3, with_lse_gradient=True
    )
    ranks.run(size, cases.by_torch, case, 3000, "sdpa_ol")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_types(ranks, dtype):
    ranks.run(2, cases.by_torch, Case(rows=131, dtype=dtype, degree=2), 5000)


@pytest.mark.parametrize("size", [1, 2])
def test_precision(ranks, size):
    ranks.run(size, cases.in_another_precision)


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
