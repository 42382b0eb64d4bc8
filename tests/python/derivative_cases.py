# SPDX-License-Identifier: Apache-2.0
"""Gradients that are to have gradients themselves: cases that every rank runs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from magi_attention import masks
from magi_attention.comm.functional import all_gather_fwd_scatter_bwd, scatter_fwd_all_gather_bwd
from ranks import refuses
from sparse_cases import HEADS, bound_under, lists_inside, tensors


class Watching(TorchDispatchMode):
    """Sees operators and changes none, as profilers and policies of checkpoints do."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def refuses_second(name: str, function, *leaves: torch.Tensor) -> None:
    total = sum(result.pow(3).sum() for result in function(*leaves))
    refuses(
        lambda: torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True),
        RuntimeError,
        f"create_graph is True; {name} has no second derivative",
    )


def second_derivatives(group, rows: int = 60) -> None:
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


def second_derivatives_of_undispatch(group, rows: int = 60) -> None:
    """Rows of a whole gradient that every rank holds have gradients."""
    bound = bound_under(masks.from_cu_seqlens([0, rows]), group)
    local = bound.dispatch(tensors(rows)[0].detach()).requires_grad_()
    whole = bound.undispatch(local)
    (first,) = torch.autograd.grad(whole.pow(3).sum(), local, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), local)
    is_real = (bound.position_ids < rows).view(-1, 1, 1) & (local != 0)
    wanted = torch.where(is_real, 6 * local.detach(), 0.0)
    assert torch.allclose(second, wanted), (second - wanted).abs().max()
