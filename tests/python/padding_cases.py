# SPDX-License-Identifier: Apache-2.0
"""Tensors that lack the padding of their rank, on every rank."""

from __future__ import annotations

import torch

import dense
from magi_attention import api
from pipeline_cases import Case, make_key, make_tensors


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


def compiled_without_padding(group, rows: int) -> None:
    """The operator's path gives the same."""
    case = Case(rows=rows, heads=(2, 2), head_dim=8)
    key = make_key(dense.masks(rows)["causal"], case, group)
    q, *_ = make_tensors(case)
    local = api.dispatch(q, key)[: key._local_shape.num_valid]

    def attention(x):
        return api.calc_attn(x, x, x, key)[0]

    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(local), attention(local))


def wrong_rows(group) -> None:
    """What is neither is refused by both numbers; keys follow the queries."""
    case = Case(rows=383, heads=(2, 2), head_dim=8)
    key = make_key(dense.masks(383)["causal"], case, group)
    x = torch.zeros(384, 2, 8)
    for arguments, sentence in (
        ((x[:380], x[:380], x[:380]), "q has 380 rows; allowed: 384, the plan's rows of rank 0, "
         "or 383 without padding"),
        ((x[:383], x, x), "k has 384 rows; allowed: 383"),
    ):  # fmt: skip
        try:
            api.calc_attn(*arguments, key)
        except ValueError as error:
            assert sentence in str(error), error
        else:
            raise AssertionError("another number of rows was accepted")
