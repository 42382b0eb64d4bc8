# SPDX-License-Identifier: Apache-2.0
"""Attention over the ranks of a group: the operators and their gradient."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from magi_attention._native.attention import Options
from magi_attention.functional._ops import (
    backward,
    define,
    fake_backward,
    fake_forward,
    forward,
)

if TYPE_CHECKING:
    from magi_attention.bound_plan import BoundPlan
    from magi_attention.common.forward_meta import AttnForwardMeta

# Operators name the plan they run by a number.
_bound_plans: "weakref.WeakValueDictionary[int, BoundPlan]" = weakref.WeakValueDictionary()
_last_number = 0


def register(bound: "BoundPlan") -> int:
    """A number that names the plan in operators for as long as it lives."""
    global _last_number
    _last_number += 1
    _bound_plans[_last_number] = bound
    return _last_number


def _find(number: int) -> "BoundPlan":
    bound = _bound_plans.get(number)
    if bound is None:
        raise ValueError(f"the plan numbered {number} is gone: its key left the cache")
    return bound


def _forward_fake(q, k, v, sink, plan, scale, softcap, sink_layout, with_max_logits):
    return fake_forward(q, k, v, with_max_logits)


def _forward(q, k, v, sink, plan, scale, softcap, sink_layout, with_max_logits):
    options = Options(scale, softcap, sink_layout, with_max_logits)
    bound = _find(plan)
    out, lse, max_logits = forward(bound.calls.find(q, k, v, sink, options), q, k, v, sink)
    lse.bound_plan = bound  # a compiled backward is given this tensor and a number
    return out, lse, max_logits


def _backward_fake(dout, dlse, q, k, v, out, lse, sink, plan, scale, softcap, sink_layout):
    return fake_backward(q, k, v, sink)


def _backward(dout, dlse, q, k, v, out, lse, sink, plan, scale, softcap, sink_layout):
    bound = _find(plan)
    options = Options(scale, softcap, sink_layout, is_fast_backward=bound.is_fast_backward)
    call = bound.calls.find(q, k, v, sink, options)
    gradients = backward(call, dout, dlse, q, k, v, out, lse, sink)
    if sink is not None and sink_layout == 0:
        bound.reduce_dsink(gradients[3])
    return gradients


define(
    "dist_forward",
    "(Tensor q, Tensor k, Tensor v, Tensor? sink, SymInt plan, float scale, float softcap,"
    " int sink_layout, bool with_max_logits) -> (Tensor, Tensor, Tensor)",
    _forward_fake,
    _forward,
    tags=(torch.Tag.cudagraph_unsafe,),
)
define(
    "dist_backward",
    "(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,"
    " Tensor? sink, SymInt plan, float scale, float softcap, int sink_layout)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _backward_fake,
    _backward,
    tags=(torch.Tag.cudagraph_unsafe,),
)
_forward_op = torch.ops.magi_attention.dist_forward.default
_backward_op = torch.ops.magi_attention.dist_backward.default


class DistAttention(torch.autograd.Function):
    """out, lse and max_logits of this rank's rows; gradients come through out and lse."""

    @staticmethod
    def forward(ctx, q, k, v, sink, plan, scale, softcap, layout, with_max_logits):
        out, lse, max_logits = _forward_op(
            q, k, v, sink, plan, scale, softcap, layout, with_max_logits
        )
        ctx.save_for_backward(q, k, v, out, lse, sink)
        ctx.params = (plan, scale, softcap, layout)
        if not torch.compiler.is_compiling():
            ctx.bound = _find(plan)  # lives until backward
        ctx.mark_non_differentiable(max_logits)
        return out, lse, max_logits

    @staticmethod
    def backward(ctx, dout, dlse, _dmax_logits):
        q, k, v, out, lse, sink = ctx.saved_tensors
        dq, dk, dv, dsink = _backward_op(dout, dlse, q, k, v, out, lse, sink, *ctx.params)
        return dq, dk, dv, None if sink is None else dsink, None, None, None, None, None


def dist_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dist_attn_runtime: "BoundPlan",
    sink: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_max_logits: bool = False,
) -> "tuple[torch.Tensor, AttnForwardMeta]":
    """Attention of this rank's rows by a bound plan (Plan.bind): q [rows, heads_q, dim], k, v
    [rows, heads_kv, dim] -> (out like q, meta). As magi_attention.api.calc_attn. Collective.
    """
    if not hasattr(dist_attn_runtime, "attend_now"):
        raise TypeError(
            f"dist_attn_runtime is a {type(dist_attn_runtime).__name__}; "
            "allowed: a bound plan, Plan.bind(group)"
        )
    return dist_attn_runtime.calc_attn(q, k, v, sink, softmax_scale, softcap, return_max_logits)
