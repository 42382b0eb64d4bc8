# SPDX-License-Identifier: Apache-2.0
"""Custom operators of attention under lists of keys, with their fake implementations."""

from __future__ import annotations

import torch

from magi_attention._native.attention import Options
from magi_attention._native.lists import KeyLists, listed_call
from magi_attention._native.tensors import as_plain
from magi_attention.common._arguments import check_int
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.functional._checks import (
    check_computed_sink,
    check_params,
    check_qkv,
    check_results,
    refuse_tangents,
)
from magi_attention.functional._ops import (
    backward,
    define,
    fake_backward,
    fake_forward,
    forward,
    number_of,
)

_MAX_BLOCK = (1 << 30) - 1


def check_lists(
    indices: torch.Tensor,
    block: int,
    shape: tuple[int, int],
    device: torch.device,
    name: str = "index_sparse_indices",
) -> torch.Tensor:
    """Lists int32 [*shape, n] as a plain tensor on the device; block: that of sparse_k_block_size.
    name: of the argument.
    """
    check_int("sparse_k_block_size", block, 1, _MAX_BLOCK)
    if not isinstance(indices, torch.Tensor):
        raise TypeError(f"{name} is a {type(indices).__name__}; allowed: an int32 tensor")
    if indices.dtype != torch.int32:
        raise TypeError(f"{name}.dtype is {indices.dtype}; allowed: int32")
    if indices.dim() != 3 or tuple(indices.shape[:2]) != shape:
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{name} has shape {list(indices.shape)}; allowed: [{wanted}, n]")
    if indices.device != device:
        raise ValueError(f"{name} is on {indices.device}; allowed: {device}, that of q")
    return as_plain(name, indices)


class _Listed:
    """Arguments of an operator, checked. features: with_max_logits, sm_margin, is_fast_backward."""

    def __init__(
        self, qkv, indices, sink, block, scale, softcap, sink_layout, symbols, features=(False, 0)
    ):
        scale, softcap = map(number_of, (scale, softcap), symbols)
        self.qkv = q, k, v = check_qkv(*qkv)
        check_params(scale or None, softcap, q.dtype)
        self.sink = check_computed_sink(sink, sink_layout, q)
        refuse_tangents(q=q, k=k, v=v, sink=sink)
        indices = check_lists(indices, block, (q.shape[0], k.shape[1]), q.device)
        self.lists = KeyLists(indices, block)
        options = Options(scale, softcap, sink_layout, *features)
        self.call = listed_call(q, k, v, self.sink, self.lists, options)


def _listed_forward_fake(
    q, k, v, indices, sink, block, scale, softcap, sink_layout, with_max_logits, sm_margin,
    scale_symbol=None, softcap_symbol=None,
):  # fmt: skip
    return (*fake_forward(q, k, v, with_max_logits), indices.new_empty((2,), dtype=torch.int64))


def _listed_forward(
    q, k, v, indices, sink, block, scale, softcap, sink_layout, with_max_logits, sm_margin,
    scale_symbol=None, softcap_symbol=None,
):  # fmt: skip
    symbols, features = (scale_symbol, softcap_symbol), (with_max_logits, sm_margin)
    given = _Listed((q, k, v), indices, sink, block, scale, softcap, sink_layout, symbols, features)
    return (*forward(given.call, *given.qkv, given.sink), given.lists.report)


def _listed_backward_fake(
    dout, dlse, q, k, v, out, lse, indices, sink, block, scale, softcap, sink_layout, sm_margin,
    deterministic, scale_symbol=None, softcap_symbol=None,
):  # fmt: skip
    return fake_backward(q, k, v, sink, out, lse)


def _listed_backward(
    dout, dlse, q, k, v, out, lse, indices, sink, block, scale, softcap, sink_layout, sm_margin,
    deterministic, scale_symbol=None, softcap_symbol=None,
):  # fmt: skip
    symbols = scale_symbol, softcap_symbol
    features = False, sm_margin, not deterministic
    given = _Listed((q, k, v), indices, sink, block, scale, softcap, sink_layout, symbols, features)
    q, k, v = given.qkv
    dout, dlse, out, lse = check_results(q, v, dout=dout, dlse=dlse, out=out, lse=lse)
    return backward(given.call, dout, dlse, q, k, v, out, lse, given.sink)


define(
    "listed_forward",
    "(Tensor q, Tensor k, Tensor v, Tensor indices, Tensor? sink, int block, float scale,"
    " float softcap, int sink_layout, bool with_max_logits, int sm_margin,"
    " Tensor? scale_symbol=None, Tensor? softcap_symbol=None) -> (Tensor, Tensor, Tensor, Tensor)",
    _listed_forward_fake,
    _listed_forward,
)
define(
    "listed_backward",
    "(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,"
    " Tensor indices, Tensor? sink, int block, float scale, float softcap, int sink_layout,"
    " int sm_margin, bool deterministic, Tensor? scale_symbol=None,"
    " Tensor? softcap_symbol=None) -> (Tensor, Tensor, Tensor, Tensor)",
    _listed_backward_fake,
    _listed_backward,
)
listed_forward_op = torch.ops.magi_attention.listed_forward.default
listed_backward_op = torch.ops.magi_attention.listed_backward.default


class ListedAttention(torch.autograd.Function):
    """out, lse, max_logits and the error word; gradients come through out and lse."""

    @staticmethod
    def forward(ctx, q, k, v, indices, sink, symbol, cap_symbol, block, options):
        symbols = symbol, cap_symbol
        *options, deterministic = options
        out, lse, max_logits, word = listed_forward_op(
            q, k, v, indices, sink, block, *options, *symbols
        )
        ctx.save_for_backward(q, k, v, out, lse, indices, sink, *symbols)
        scale, softcap, layout, _, sm_margin = options
        ctx.params = (block, scale, softcap, layout, sm_margin, deterministic)
        ctx.mark_non_differentiable(max_logits, word)
        return out, lse, max_logits, word

    @staticmethod
    def backward(ctx, dout, dlse, _dmax_logits, _dword):
        refuse_second_derivative("attention")
        *tensors, sink, symbol, cap_symbol = ctx.saved_tensors
        dq, dk, dv, dsink = listed_backward_op(
            dout, dlse, *tensors, sink, *ctx.params, symbol, cap_symbol
        )
        return dq, dk, dv, None, None if sink is None else dsink, None, None, None, None
