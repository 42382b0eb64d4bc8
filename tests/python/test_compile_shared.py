# SPDX-License-Identifier: Apache-2.0
"""Graphs without breaks in which one tensor is given for several arguments: gradients add up."""

import pytest
import torch

import dense
from magi_attention import api
from magi_attention.api import flex_flash_attn_func
from pipeline_cases import Case, make_key, make_tensors

ROWS = 40
# Which of q, k, v is which of three tensors.
SHARED = {"k_is_v": (0, 1, 1), "q_is_k": (0, 0, 1), "q_is_v": (0, 1, 0), "all": (0, 0, 0)}


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def same_as_eager(attend, leaves, **options) -> None:
    """Results and gradients of `attend`(*leaves) -> (out, lse); sums of gradients may be in another
    order.
    """
    found = []
    for call in (attend, compiled(attend, **options)):
        given = [leaf.clone().requires_grad_() for leaf in leaves]
        out, lse = call(*given)
        (out.pow(2).sum() + lse.sum()).backward()
        found.append([out.detach(), lse.detach()] + [t.grad for t in given])
    for eager, graph in zip(*found):
        assert torch.allclose(eager, graph)


def test_readme():
    """The call of docs/python.md: q_ranges are k_ranges."""
    q, k, v = (torch.randn(1000, heads, 64) for heads in (8, 2, 2))
    q_ranges = torch.tensor([[0, 400], [400, 1000]], dtype=torch.int32)
    types = torch.tensor([1, 1], dtype=torch.int32)

    def attend(q, k, v):
        out, meta = flex_flash_attn_func(q, k, v, q_ranges, q_ranges, types)
        return out, meta.lse

    same_as_eager(attend, (q, k, v))
    call = compiled(flex_flash_attn_func)
    out, _ = call(q.requires_grad_(), k, v, q_ranges, q_ranges, types)
    out.sum().backward()
    assert torch.equal(out, flex_flash_attn_func(q, k, v, q_ranges, q_ranges, types)[0])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shared", SHARED)
def test_flex(shared, dynamic):
    ranges = torch.tensor([[0, ROWS]], dtype=torch.int32)
    leaves = make_tensors(Case(rows=ROWS, heads=(4, 4)))[:3]
    types = torch.ones(1, dtype=torch.int32)
    sink = torch.randn(2, 4, dtype=torch.float64)

    def attend(*given):
        *qkv, sink = given
        q, k, v = (qkv[i] for i in SHARED[shared])
        out, meta = flex_flash_attn_func(q, k, v, ranges, ranges, types, sink=sink)
        return out, meta.lse

    same_as_eager(attend, (*leaves[: max(SHARED[shared]) + 1], sink), dynamic=dynamic)


def test_types_and_sink_that_come_twice():
    """A sink for each row that is q as well."""
    q = torch.randn(8, 2, 2, dtype=torch.float64)
    ranges = torch.tensor([[0, 8]], dtype=torch.int32)

    def attend(q):
        out, meta = flex_flash_attn_func(q, q, q, ranges, ranges, sink=q, sink_layout="ssh")
        return out, meta.lse

    same_as_eager(attend, (q,))


@pytest.mark.parametrize("size", [1, 2])
def test_calc_attn(ranks, size):
    ranks.run(size, over_ranks)


def over_ranks(group) -> None:
    case = Case(rows=ROWS, heads=(4, 4))
    key = make_key(dense.masks(ROWS)["varlen_causal"], case, group)
    local = [api.dispatch(t, key) for t in make_tensors(case)[:3]]
    for shared in SHARED.values():

        def attend(*given):
            q, k, v = (given[i] for i in shared)
            out, meta = api.calc_attn(q, k, v, key)
            return out, meta.lse

        same_as_eager(attend, local[: max(shared) + 1])
