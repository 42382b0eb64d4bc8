# SPDX-License-Identifier: Apache-2.0
"""Rows before the padding alone, as models that know of no padding give them."""

from __future__ import annotations

import pytest
import torch

import dense
from magi_attention import api
from pipeline_cases import Case, make_key, make_tensors
from ranks import over, refuses


def without_padding(group, case: Case) -> None:
    """Results and gradients are those of padded tensors, without the rows of padding."""
    key = make_key(dense.masks(case.rows)[case.mask], case, group)
    dtype = getattr(torch, case.dtype)
    *qkv, sink, dout, dlse = make_tensors(case)
    q, k, v, dout = (tensor.to(dtype) for tensor in (*qkv, dout))
    if dtype != torch.float64:
        dlse, sink = dlse.float(), None if sink is None else sink.float()
    error = 1e-8 if dtype == torch.float64 else 2e-2
    if sink is not None and case.sink_per_row:
        sink = api.dispatch(sink, key)
    whole = [api.dispatch(tensor, key) for tensor in (q, k, v, dout, dlse)]
    num_valid = key._local_shape.num_valid
    assert num_valid <= whole[0].shape[0]
    wanted = results(key, whole, sink, case)
    short = [tensor[:num_valid] for tensor in whole]
    short_sink = sink[:num_valid] if case.sink_per_row else sink
    found = results(key, short, short_sink, case)
    for name, one, other in zip(("out", "lse", "max_logits", "dq", "dk", "dv"), found, wanted):
        other = other if name == "max_logits" else other[:num_valid]
        assert one.shape == other.shape and torch.allclose(one, other, error, error), name
    assert torch.equal(api.undispatch(short[0], key), q)
    assert torch.equal(api.roll(short[0], 3, 0, key), api.roll(whole[0], 3, 0, key)[:num_valid])


def results(key, local, sink, case: Case):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in local[:3]]
    out, meta = api.calc_attn(*leaves, key, sink, softcap=case.softcap, return_max_logits=True)
    lse = torch.where(meta.lse.isfinite(), meta.lse, 0.0)
    ((out * local[3]).sum() + (lse * local[4]).sum()).backward()
    return out.detach(), meta.lse.detach(), meta.max_logits, *(leaf.grad for leaf in leaves)


@over(1, 2)
def test_compiled(group, rows: int = 67):
    """The operator's path gives the same."""
    case = Case(rows=rows, heads=(2, 2), head_dim=8)
    key = make_key(dense.masks(rows)["causal"], case, group)
    q, *_ = make_tensors(case)
    local = api.dispatch(q, key)[: key._local_shape.num_valid]

    def attention(x):
        return api.calc_attn(x, x, x, key)[0]

    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(local), attention(local))


@over(1)
def test_other_numbers_of_rows(group):
    """What is neither is refused by both numbers; keys follow the queries."""
    case = Case(rows=383, heads=(2, 2), head_dim=8)
    key = make_key(dense.masks(383)["causal"], case, group)
    x = torch.zeros(384, 2, 8)
    for arguments, sentence in (
        ((x[:380], x[:380], x[:380]), "q has 380 rows; allowed: 384, the plan's rows of rank 0, "
         "or 383 without padding"),
        ((x[:383], x, x), "k has 384 rows; allowed: 383"),
    ):  # fmt: skip
        refuses(lambda: api.calc_attn(*arguments, key), ValueError, sentence)


@pytest.mark.parametrize("size, rows", [(1, 383), (1, 1), (1, 50), (2, 383), (3, 17), (4, 150)])
def test_rows_before_the_padding(ranks, size, rows):
    ranks.run(size, without_padding, Case(rows=rows, heads=(4, 2), head_dim=8))


@over(1, 3)
@pytest.mark.parametrize("per_row", [False, True])
def test_sinks(group, per_row):
    case = Case(rows=131, heads=(4, 2), head_dim=8, sinks=2, sink_per_row=per_row, softcap=5.0)
    without_padding(group, case)
