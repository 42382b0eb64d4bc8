# SPDX-License-Identifier: Apache-2.0
"""Cases of the operators of torch.ops.magi_attention over ranks, and of numbers in graphs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._dynamo.testing import CompileCounterWithBackend

import dense
from error_cases import refuses
from magi_attention import api
from magi_attention.errors import CommError
from magi_attention.functional._operators import knows_symbols
from pipeline_cases import Case, make_key, make_tensors

CASE = Case(rows=64, heads=(4, 2), head_dim=8)


def _key_and_rows(group):
    key = make_key(dense.masks(64)["causal"], CASE, group)
    return key, [api.dispatch(t, key).requires_grad_() for t in make_tensors(CASE)[:3]]


def bad_arguments(group) -> None:
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
    api.clear_cache(group)


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


def numbers_of_graphs(group) -> None:
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
    api.clear_cache(group)
