# SPDX-License-Identifier: Apache-2.0
"""Second derivatives and transforms of functions, which this package has not."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from magi_attention import Plan, masks
from magi_attention.comm.functional import all_gather_fwd_scatter_bwd, scatter_fwd_all_gather_bwd
from magi_attention.functional import block_sparse_attn_func, flex_flash_attn_func
from ranks import over, refuses
from test_sparse_ranks import HEADS, bound_under, lists_inside, tensors


class Watching(TorchDispatchMode):
    """Sees operators and changes none, as profilers and policies of checkpoints do."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def refuses_second(name: str, function, *leaves: torch.Tensor) -> None:
    total = sum(result.pow(3).sum() for result in function(*leaves))
    call = partial(torch.autograd.grad, total, leaves, create_graph=True, materialize_grads=True)
    refuses(call, RuntimeError, f"create_graph is True; {name} has no second derivative")


@over(1, 3)
def test_over_ranks(group, rows: int = 60):
    """They are refused by whatever would drop them, before a rank waits for another."""
    bound = bound_under(masks.from_cu_seqlens([0, rows]), group)
    leaves = tensors(rows)
    local = [bound.dispatch(leaf.detach()).requires_grad_() for leaf in leaves]
    sink = torch.zeros(1, HEADS[0], dtype=torch.float64, requires_grad=True)
    lists = bound.dispatch(lists_inside(rows, 8, 3, 1))

    def watched(*qkv):
        with Watching():
            return bound.calc_attn(*qkv)[:1]

    refuses_second("attention", lambda *qkv: bound.calc_attn(*qkv)[:1], *local)
    refuses_second("attention", lambda *qkv: bound.calc_attn(*qkv, sink)[:1], *local)
    refuses_second("attention", watched, *local)
    refuses_second("attention", lambda *qkv: bound.calc_sparse_attn(*qkv, lists)[:1], *local)
    refuses_second("dispatch", lambda x: [bound.dispatch(x)], leaves[0])
    refuses_second("roll", lambda x: [bound.roll(x, 3)], local[0])
    name = "undispatch with is_partial_grad"
    refuses_second(name, lambda x: [bound.undispatch(x, is_partial_grad=True)], local[0])
    for function in (all_gather_fwd_scatter_bwd, scatter_fwd_all_gather_bwd):
        whole = torch.ones(2 * dist.get_world_size(group), requires_grad=True)
        refuses_second(function.__name__, lambda x, f=function: [f(x, group)], whole)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(whole.detach(), whole.detach())
            refuses(lambda: function(dual, group), NotImplementedError, "^input carries a tangent")


@over(1, 3)
def test_of_undispatch(group, rows: int = 60):
    """Rows of a whole gradient that every rank holds have gradients."""
    bound = bound_under(masks.from_cu_seqlens([0, rows]), group)
    local = bound.dispatch(tensors(rows)[0].detach()).requires_grad_()
    whole = bound.undispatch(local)
    (first,) = torch.autograd.grad(whole.pow(3).sum(), local, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), local)
    is_real = (bound.position_ids < rows).view(-1, 1, 1) & (local != 0)
    wanted = torch.where(is_real, 6 * local.detach(), 0.0)
    assert torch.allclose(second, wanted), (second - wanted).abs().max()


ROWS = 6
RANGES = torch.tensor([[0, ROWS]], dtype=torch.int32)
LISTS = torch.arange(ROWS, dtype=torch.int32).expand(ROWS, 2, ROWS).contiguous()


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize(
    "mask",
    [{"q_ranges": RANGES, "k_ranges": RANGES}, {"index_sparse_indices": LISTS}],
    ids=["ranges", "lists"],
)
def test_on_one_device(mask, is_watched):
    def attend(q, k, v):
        if not is_watched:
            return flex_flash_attn_func(q, k, v, **mask)[:1]
        with Watching():
            return flex_flash_attn_func(q, k, v, **mask)[:1]

    leaves = [torch.randn(ROWS, 2, 8, requires_grad=True) for _ in range(3)]
    refuses_second("attention", attend, *leaves)


def calls():
    """Functions of q."""
    bound = Plan.from_mask(
        masks.from_cu_seqlens([0, ROWS]), cp_size=1, num_heads_q=2, num_heads_kv=2, head_dim=8
    ).bind()
    kv = [torch.randn(ROWS, 2, 8)] * 2
    blocks = {"block_mask": torch.ones(1, 1, 1).bool(), "q_block_size": 6, "k_block_size": 6}
    return [
        lambda q: flex_flash_attn_func(q, *kv, RANGES, RANGES)[0],
        lambda q: flex_flash_attn_func(q, *kv, index_sparse_indices=LISTS)[0],
        lambda q: block_sparse_attn_func(q, *kv, **blocks)[0],
        lambda q: bound.calc_attn(q, *kv)[0],
        lambda q: bound.calc_sparse_attn(q, *kv, LISTS)[0],
        lambda q: bound.calc_attn(*[kv[0]] * 3)[0] * q,  # of nothing that is transformed
        bound.dispatch,
        bound.undispatch,
        lambda q: bound.roll(q, 1),
    ]


TRANSFORMS = [
    lambda call, q: torch.func.vmap(call)(torch.stack((q, q))),
    lambda call, q: torch.func.grad(lambda x: call(x).sum())(q),
    lambda call, q: torch.func.jvp(call, (q,), (q,)),
    lambda call, q: torch.func.jacrev(call)(q),
    lambda call, q: torch.func.vjp(call, q),
]


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("call", [*calls()[:5], *calls()[6:]])
def test_tangents_are_refused(call, has_gradients, is_watched):
    """Those of arguments and of gradients, whether autograd has an eye on them or not."""
    pattern = "carries a tangent, and forward-mode AD is not available; use torch.autograd for"
    q = torch.randn(ROWS, 2, 8, requires_grad=True)
    out = call(q)
    watching = Watching() if is_watched else contextlib.nullcontext()
    with torch.set_grad_enabled(has_gradients), torch.autograd.forward_ad.dual_level():
        dual, gradient = (torch.autograd.forward_ad.make_dual(t.detach(), t) for t in (q, out))
        with watching, pytest.raises(NotImplementedError, match=f"^(q|x) {pattern}"):
            call(dual)
        with watching, pytest.raises(NotImplementedError, match=pattern):
            torch.autograd.grad(out, q, gradient)
        call(q.detach())


@pytest.mark.parametrize("call", calls())
def test_transforms_are_refused(call):
    q = torch.randn(ROWS, 2, 8)
    call(q)
    for transform in TRANSFORMS:
        with pytest.raises(NotImplementedError, match=r"^torch.func's transforms .*; use torch.a"):
            transform(call, q)
    with pytest.raises(NotImplementedError, match=r"^torch.jit.trace is not .*; use torch.export"):
        torch.jit.trace(call, (q,))
