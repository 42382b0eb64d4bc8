# SPDX-License-Identifier: Apache-2.0
"""torch.ops.magi_attention checks what the functions check, as graphs and callers of it run them
with whatever they have.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad

import dense
from magi_attention import api
from magi_attention.errors import CommError
from magi_attention.functional._operators import flex_backward_op, flex_forward_op, knows_symbols
from pipeline_cases import Case, make_key, make_tensors
from ranks import over, refuses

CASE = Case(rows=64, heads=(4, 2), head_dim=8)


def _key_and_rows(group):
    key = make_key(dense.masks(64)["causal"], CASE, group)
    return key, [api.dispatch(t, key).requires_grad_() for t in make_tensors(CASE)[:3]]


@over(1, 2)
def test_over_ranks(group):
    """Refused by name on every rank, before and after the first call; the plan runs."""
    key, (q, k, v) = _key_and_rows(group)
    forward = torch.ops.magi_attention.dist_forward.default
    backward = torch.ops.magi_attention.dist_backward.default
    good = {
        "q": q.detach(), "k": k.detach(), "v": v.detach(), "sink": None, "plan": key._number,
        "scale": 0.5, "softcap": 0.0, "sink_layout": 0,
    }  # fmt: skip
    bad = (
        ({"q": good["q"][1:]}, ValueError, "q has .* rows; allowed"),
        ({"k": good["k"].float()}, TypeError, "k.dtype is torch.float32"),
        ({"v": good["v"][:, :, :4]}, ValueError, "v.shape is"),
        ({"sink": torch.zeros(1, 4)}, TypeError, "sink.dtype is torch.float32"),
        ({"sink_layout": 3}, ValueError, "sink_layout is 3"),
        ({"softcap": -1.0}, ValueError, "softcap is -1"),
        ({"plan": 0}, ValueError, "the plan numbered 0 is gone"),
    )
    results: dict = {}
    for _ in range(2):
        for change, error, text in bad:
            given = {**good, **change}
            refuses(lambda: forward(**given, with_max_logits=False), error, text)
            if results:
                refuses(lambda: backward(**results, **given), error, text)
        out, lse, _ = forward(**good, with_max_logits=False)
        results = {"dout": torch.ones_like(out), "dlse": None, "out": out, "lse": lse}
        assert torch.equal(out, api.calc_attn(q, k, v, key, softmax_scale=0.5)[0])
    for change in ({"dout": out[1:]}, {"lse": lse.float()}, {"out": out[:, :1]}):
        (name,) = change
        text = f"^{name}"
        given = {**results, **change}
        refuses(lambda: backward(**given, **good), (ValueError, TypeError), text)
    assert backward(**results, **good)[0].isfinite().all()


def graphs_serve_numbers(attend, tensors, names: tuple[str, ...]) -> None:
    """attend(*tensors, **numbers) gives as a graph what it gives without one, in two graphs."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    for step in range(1, 6):
        numbers = dict.fromkeys(names, 0.3 * step)
        found = []
        for call in (attend, compiled):
            out = call(*tensors, **numbers)
            found.append((out, *torch.autograd.grad(out.pow(2).sum(), leaves)))
        for eager, graph in zip(*found):
            assert torch.allclose(eager, graph)
        if knows_symbols():
            assert counter.frame_count <= 2, f"graph {counter.frame_count} at call {step}"


@over(1, 2)
def test_numbers_of_graphs_over_ranks(group):
    key, tensors = _key_and_rows(group)

    def attend(q, k, v, **numbers):
        return api.calc_attn(q, k, v, key, **numbers)[0]

    graphs_serve_numbers(attend, tensors, ("softmax_scale", "softcap"))
    if dist.get_world_size(group) > 1:  # compared as numbers, not as texts of symbols
        api.clear_cache(group)
        key, (q, k, v) = _key_and_rows(group)
        call = torch.compile(api.calc_attn, fullgraph=True, backend="aot_eager")
        scale = 0.5 + dist.get_rank(group)
        refuses(lambda: call(q, k, v, key, softmax_scale=scale), CommError, "softmax_scale")


ROWS = 6


def arguments() -> dict:
    """Of both operators; a backward takes all but with_max_logits, a forward up to that."""
    random = torch.Generator().manual_seed(0)
    q = torch.randn(ROWS, 4, 8, generator=random)
    k, v = torch.randn(ROWS, 2, 8, generator=random), torch.randn(ROWS, 2, 16, generator=random)
    ranges = torch.tensor([[0, ROWS]], dtype=torch.int32)
    return {
        "q": q, "k": k, "v": v, "q_ranges": ranges, "k_ranges": ranges.clone(),
        "types": torch.ones(1, dtype=torch.int32), "sink": torch.zeros(1, 4), "scale": 0.5,
        "softcap": 0.0, "sink_layout": 0, "sm_margin": 0,
    }  # fmt: skip


def forward(**given):
    return flex_forward_op(**given, with_max_logits=False)


OUT, LSE, _ = forward(**arguments())
GRADIENTS = {"dout": torch.ones_like(OUT), "dlse": torch.ones_like(LSE), "out": OUT, "lse": LSE}


def backward(**given):
    return flex_backward_op(**{**GRADIENTS, **given}, deterministic=True)


ranges = torch.tensor([[0, ROWS]], dtype=torch.int32)
BAD = [
    ({"q_ranges": ranges.long()}, TypeError, "q_ranges.dtype is torch.int64"),
    ({"q_ranges": ranges[0]}, ValueError, "q_ranges has shape"),
    ({"q_ranges": ranges + 1}, ValueError, "q_ranges"),
    ({"k_ranges": ranges.repeat(2, 1)}, ValueError, "k_ranges has 2 rows; allowed: 1"),
    ({"types": torch.ones(3, dtype=torch.int32)}, ValueError, "attn_type_map has shape"),
    ({"types": torch.full((1,), 9, dtype=torch.int32)}, ValueError, "attn_type_map"),
    ({"sink_layout": 2}, ValueError, "sink_layout is 2; allowed: 0"),
    ({"sm_margin": -1}, ValueError, "sm_margin is -1"),
]


@pytest.mark.parametrize("operator", [forward, backward], ids=lambda call: call.__name__)
@pytest.mark.parametrize("change, error, text", BAD, ids=lambda value: getattr(value, "args", ""))
def test_bad_arguments(operator, change, error, text):
    operator(**arguments())
    with pytest.raises(error, match=text):
        operator(**{**arguments(), **change})


def test_layouts_of_results():
    """Gaps in what a graph has saved are no part of the memory that is read."""
    wanted = backward(**arguments())
    gaps = {
        name: torch.cat((tensor, tensor + 7), 1)[:, : tensor.shape[1]]
        for name, tensor in GRADIENTS.items()
    }
    assert not any(tensor.is_contiguous() for tensor in gaps.values())
    for found, expected in zip(backward(**arguments(), **gaps), wanted):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["q", "k", "v", "sink"])
def test_negated_and_dual_tensors(name):
    given = arguments() | {"sink": torch.ones(1, 4)}
    wanted = forward(**given)[0]
    negated = torch._neg_view(-given[name])
    assert torch.equal(forward(**{**given, name: negated})[0], wanted)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(given[name], torch.ones_like(given[name]))
        with pytest.raises(NotImplementedError, match=f"{name} carries a tangent"):
            forward(**{**given, name: dual})


@pytest.mark.parametrize("option", ["softmax_scale", "softcap", "both"])
def test_numbers_of_graphs(option):
    """A new scale or softcap is an input of a graph: the second one makes it one, the third finds
    it.
    """

    def attend(q, k, v, ranges, **numbers):
        return api.flex_flash_attn_func(q, k, v, ranges, ranges, **numbers)[0]

    given = [arguments()[name].requires_grad_() for name in "qkv"]
    names = ("softmax_scale", "softcap") if option == "both" else (option,)
    graphs_serve_numbers(attend, (*given, ranges), names)


def test_dense_reference():
    """What the operators give is attention."""
    mask = dense.Mask([(0, ROWS)], [(0, ROWS)], [1], ROWS, ROWS)
    given = arguments()
    tensors = (given[name].double() for name in "qkv")
    out, lse, _ = dense.attention(*tensors, mask, given["sink"].double(), 0.5)
    assert torch.allclose(OUT.double(), out, atol=1e-6)
    assert torch.allclose(LSE.double(), lse, atol=1e-6)
