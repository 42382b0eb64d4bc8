# SPDX-License-Identifier: Apache-2.0
"""Attention over the ranks of a group: the operators and their gradient."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch

from magi_attention._native.attention import Options
from magi_attention.common._arguments import as_bool
from magi_attention.common.enum import MagiAttentionPrecision
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.functional._calls import is_eager
from magi_attention.functional._checks import (
    check_computed_sink,
    check_params,
    check_results,
    check_sink,
)
from magi_attention.functional._kept import kept
from magi_attention.functional._operators import (
    UNCAPTURED,
    backward,
    define,
    distinct,
    fake_backward,
    fake_forward,
    forward,
    number_of,
    refuse_derivatives,
    with_symbols,
)
from magi_attention.functional._rank_attention import (
    LocalShape,
    RankAttention,
    attend_padded,
    check_local,
    check_unpadded,
    find_attention,
    lacks_padding,
    layout_of,
)
from magi_attention.functional._sharded import are_sharded, attend_to_parts


class HasAttention(Protocol):
    """The type that dist_attn_func takes: a bound plan (magi_attention.plan.Plan.bind)."""

    attention: RankAttention


def _checked(attention: RankAttention, q, k, v, sink, numbers: tuple, **results):
    """Checks q, k, v and sink as calc_attn does, and results of a forward, for callers of operators
    and graphs; other ranks are told. numbers: scale, softcap and the sink's layout.
    """
    scale, softcap, sink_layout = numbers
    try:
        q, k, v = check_local(q, k, v, attention.local_shape, None)
        check_params(scale or None, softcap, q.dtype)
        sink = check_computed_sink(sink, sink_layout, q)
        return q, k, v, sink, *check_results(q, v, **results)
    except Exception as error:
        attention.refuse(error)
        raise


def _forward(
    q, k, v, sink, plan, scale, softcap, sink_layout, with_max_logits, scale_symbol=None,
    softcap_symbol=None,
):  # fmt: skip
    attention = find_attention(plan)
    numbers = number_of(scale, scale_symbol), number_of(softcap, softcap_symbol), sink_layout
    q, k, v, sink = _checked(attention, q, k, v, sink, numbers)
    options = Options(*numbers, with_max_logits)
    out, lse, max_logits = forward(attention.find_call(q, k, v, sink, options), q, k, v, sink)
    lse.attention = attention  # a compiled backward is given this tensor and a number
    return out, lse, max_logits


def _backward(
    dout, dlse, q, k, v, out, lse, sink, plan, scale, softcap, sink_layout, scale_symbol=None,
    softcap_symbol=None,
):  # fmt: skip
    attention = find_attention(plan)
    numbers = number_of(scale, scale_symbol), number_of(softcap, softcap_symbol), sink_layout
    q, k, v, sink, dout, dlse, out, lse = _checked(
        attention, q, k, v, sink, numbers, dout=dout, dlse=dlse, out=out, lse=lse
    )
    options = Options(*numbers, is_fast_backward=attention.is_fast_backward)
    call = attention.calls.find(q, k, v, sink, options)
    gradients = backward(call, dout, dlse, q, k, v, out, lse, sink)
    if sink is not None and sink_layout == 0:
        attention.reduce_dsink(gradients[3])
    return gradients


define(
    "dist_forward",
    "(Tensor q, Tensor k, Tensor v, Tensor? sink, SymInt plan, float scale, float softcap,"
    " int sink_layout, bool with_max_logits, Tensor? scale_symbol=None,"
    " Tensor? softcap_symbol=None) -> (Tensor, Tensor, Tensor)",
    lambda q, k, v, sink, plan, *numbers: fake_forward(q, k, v, numbers[3]),
    _forward,
    tags=UNCAPTURED,
)
define(
    "dist_backward",
    "(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,"
    " Tensor? sink, SymInt plan, float scale, float softcap, int sink_layout,"
    " Tensor? scale_symbol=None, Tensor? softcap_symbol=None) -> (Tensor, Tensor, Tensor, Tensor)",
    lambda dout, dlse, q, k, v, out, lse, sink, *numbers: fake_backward(q, k, v, sink, out, lse),
    _backward,
    tags=UNCAPTURED,
)
dist_forward_op = torch.ops.magi_attention.dist_forward.default
_backward_op = torch.ops.magi_attention.dist_backward.default


class DistAttention(torch.autograd.Function):
    """out, lse and max_logits of this rank's rows; gradients come through out and lse. options:
    the plan's number, scale, softcap, layout and whether max_logits are wanted.
    """

    @staticmethod
    def forward(ctx, q, k, v, sink, scale_symbol, softcap_symbol, options):
        symbols = scale_symbol, softcap_symbol
        out, lse, max_logits = kept(dist_forward_op, q, k, v, sink, *options, *symbols)
        ctx.save_for_backward(q, k, v, out, lse, sink, *symbols)
        ctx.params = options[:-1]
        if not torch.compiler.is_compiling():
            ctx.attention = find_attention(options[0])  # lives until backward
        ctx.mark_non_differentiable(max_logits)
        return out, lse, max_logits

    @staticmethod
    def backward(ctx, dout, dlse, _dmax_logits):
        try:
            refuse_derivatives(dout, dlse)
            *tensors, sink, scale_symbol, softcap_symbol = ctx.saved_tensors
        except Exception as error:
            ctx.attention.refuse(error)
            raise
        dq, dk, dv, dsink = _backward_op(
            dout, dlse, *tensors, sink, *ctx.params, scale_symbol, softcap_symbol
        )
        return dq, dk, dv, None if sink is None else dsink, None, None, None


def attend(
    number: int,
    local_shape: LocalShape,
    precision: MagiAttentionPrecision | None,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    given_options: tuple,
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """RankAttention.attend as an operator, by its number, local_shape and precision."""
    if lacks_padding(qkv[0], local_shape):
        check_unpadded(qkv, local_shape.num_valid)
        padded = partial(attend, number, local_shape, precision)
        return attend_padded(qkv, given_options, local_shape, padded)
    sink, sink_layout, softmax_scale, softcap, return_max_logits = given_options
    given_dtype = qkv[0].dtype if isinstance(qkv[0], torch.Tensor) else None
    q, k, v = check_local(*qkv, local_shape, precision)
    scale, softcap = check_params(softmax_scale, softcap, q.dtype)
    sink, layout = check_sink(sink, sink_layout, q)
    return_max_logits = as_bool("return_max_logits", return_max_logits)
    scale, softcap, symbols = with_symbols(scale, softcap)
    numbers = (number, scale, softcap, layout, return_max_logits)
    out, lse, max_logits = DistAttention.apply(*distinct(q, k, v, sink), *symbols, numbers)
    meta = AttnForwardMeta(lse=lse, max_logits=max_logits if return_max_logits else None)
    return out.to(given_dtype), meta


def dist_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dist_attn_runtime: HasAttention,
    sink: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_max_logits: bool = False,
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """Attention of this rank's rows by a bound plan (Plan.bind): q [rows, heads_q, dim], k, v
    [rows, heads_kv, dim] -> (out like q, meta). As magi_attention.api.calc_attn. Collective.
    """
    attention = getattr(dist_attn_runtime, "attention", None)
    if not isinstance(attention, RankAttention):
        raise TypeError(
            f"dist_attn_runtime is a {type(dist_attn_runtime).__name__}; "
            "allowed: a bound plan, Plan.bind(group)"
        )
    given_options = (sink, layout_of(sink), softmax_scale, softcap, return_max_logits)
    return attend_by(attention, (q, k, v), given_options)


def attend_by(
    attention: RankAttention,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    given_options: tuple,
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """RankAttention.attend, as an operator where one is asked for, and of DTensors."""
    if is_eager(*qkv):
        return attention.attend(*qkv, given_options)
    if are_sharded(*qkv):

        def again(*parts):
            return attend_by(attention, parts, given_options)

        return attend_to_parts(qkv, attention.number, attention.ranks, again)
    return attend(attention.number, attention.local_shape, attention.precision, qkv, given_options)
