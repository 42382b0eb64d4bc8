# SPDX-License-Identifier: Apache-2.0
"""torch's machinery around attention on a GPU: compiled modules, operators, recomputation."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import dense
from magi_attention.api import flex_flash_attn_func
from magi_attention.functional import _slices
from magi_attention.functional._operators import flex_backward_op, flex_forward_op
from magi_attention.functional.dist_attn import _backward_op, dist_forward_op
from on_gpu import FAMILIES, NEEDS_GPU, PLACES, ROWS, bound_plan, inputs, ranges_on

pytestmark = NEEDS_GPU


class Layer(torch.nn.Module):
    """Attention by a plan, then by ranges, between what a compiler fuses."""

    def __init__(self, bound, ranges) -> None:
        super().__init__()
        self.bound, self.ranges = bound, ranges
        self.gain = torch.nn.Parameter(torch.ones(64, device="cuda", dtype=torch.bfloat16))

    def forward(self, q, k, v, sink):
        first, _ = self.bound.calc_attn(q * self.gain, k, v, sink)
        mixed = (first + q)[:ROWS]
        second, meta = flex_flash_attn_func(mixed, k[:ROWS], v[:ROWS], *self.ranges, softcap=5.0)
        return torch.nn.functional.silu(second), meta.lse


def layer_and_leaves(place="host"):
    mask, bound = bound_plan()
    leaves = [bound.dispatch(t.detach()).requires_grad_() for t in inputs()]
    leaves.append(torch.randn(2, 8, device="cuda", requires_grad=True))
    return Layer(bound, ranges_on(mask, place)), leaves


def gradients_of(function, layer, leaves):
    out, lse = function(*leaves)
    loss = out.float().pow(2).sum() + lse.sum()
    return [out, lse, *torch.autograd.grad(loss, (*leaves, layer.gain))]


def agree(found, wanted):
    for a, b in zip(found, wanted):
        assert a.dtype == b.dtype and a.isfinite().all()
        scale = max(1.0, b.abs().max().item())
        assert (a - b).abs().max().item() <= 4e-2 * scale


@PLACES
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend, place):
    layer, leaves = layer_and_leaves(place)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    agree(gradients_of(compiled, layer, leaves), gradients_of(layer, layer, leaves))


@FAMILIES
@pytest.mark.parametrize("options", [{"backend": "cudagraphs"}, {"mode": "reduce-overhead"}])
def test_compiled_with_cuda_graphs(options):
    """What a call keeps is not memory of the graph that it is made in."""
    torch.compiler.reset()
    for calls in _slices._calls.values():
        calls.clear()  # a call that was made before has taken it elsewhere
    ends = torch.tensor([[0, ROWS]], dtype=torch.int32, device="cuda")
    leaves = inputs()

    def step(function):
        torch.compiler.cudagraph_mark_step_begin()
        out = function(*leaves)
        return [t.clone() for t in (out, *torch.autograd.grad(out.float().pow(2).sum(), leaves))]

    def attend(q, k, v):
        return flex_flash_attn_func(q * 2, k, v, ends, ends)[0]

    compiled = torch.compile(attend, **options)
    found = [step(compiled) for _ in range(4)]  # warms up, records, replays
    for each in found:
        agree(each, step(attend))


def test_compiled_once_for_many_lengths():
    lengths = (96, 160, 224, 288)

    def attend(q, k, v, q_ranges, k_ranges):
        return flex_flash_attn_func(q * 2, k, v, q_ranges, k_ranges)[0] + 1

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in lengths:
        given = [t.detach() for t in inputs(rows, rows)]
        ranges = torch.tensor([[0, rows]], dtype=torch.int32, device="cuda")
        assert torch.equal(compiled(*given, ranges, ranges), attend(*given, ranges, ranges))


@PLACES
@pytest.mark.parametrize("is_permuted", [False, True])
def test_flex_operators(is_permuted, place):
    q, k, v = (t.detach() for t in inputs(64, 64))
    ranges = ranges_on(dense.masks(64)["four_types"], place)
    sink = None
    if is_permuted:
        q = q.transpose(0, 1).contiguous().transpose(0, 1)
        sink = torch.randn(2, 8, device="cuda")
    arguments = (q, k, v, *ranges, sink, 0.0, 0.0, 0, is_permuted, 0)
    torch.library.opcheck(flex_forward_op, arguments)
    out, lse, _ = flex_forward_op(*arguments)
    lse = lse.nan_to_num(neginf=0.0)
    backward = (out, lse, q, k, v, out, lse, *ranges, sink, 0.0, 0.0, 0, 0, False)
    torch.library.opcheck(flex_backward_op, backward)


def test_plan_operators():
    _, bound = bound_plan()
    q, k, v = (bound.dispatch(t.detach()) for t in inputs())
    arguments = (q, k, v, None, bound.attention.number, 0.0, 0.0, 0, True)
    torch.library.opcheck(dist_forward_op, arguments)
    out, lse, _ = dist_forward_op(*arguments)
    backward = (out, lse, q, k, v, out, lse, None, bound.attention.number, 0.0, 0.0, 0)
    torch.library.opcheck(_backward_op, backward)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_checkpointing(is_compiled):
    layer, leaves = layer_and_leaves()

    def recomputed(*given):
        return checkpoint(layer, *given, use_reentrant=False)

    function = recomputed
    if is_compiled:
        function = torch.compile(recomputed, fullgraph=True, backend="aot_eager")
    agree(gradients_of(function, layer, leaves), gradients_of(layer, layer, leaves))
