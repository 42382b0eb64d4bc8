# SPDX-License-Identifier: Apache-2.0
"""Custom operators of attention on one device, with their fake implementations."""

from __future__ import annotations

import ctypes
from collections import OrderedDict

import torch

from magi_attention._native import attention as native
from magi_attention._native.handles import MaskHandle
from magi_attention.functional._checks import accumulator_dtype

NAMESPACE = "magi_attention"
_library = torch.library.Library(NAMESPACE, "DEF")


def define(name: str, schema: str, fake, implementation, **options) -> None:
    """One operator for host memory, whose fake gives the same shapes, types and strides."""
    _library.define(name + schema, **options)
    _library.impl(name, implementation, "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)


_MASKS_KEPT = 64
_masks: OrderedDict[tuple, MaskHandle] = OrderedDict()


def _content(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _mask_of(q, k, q_ranges, k_ranges, types) -> MaskHandle:
    """The mask of these ranges; the last ones used are kept."""
    tensors = (q_ranges.contiguous(), k_ranges.contiguous(), types.contiguous())
    key = (q.shape[0], k.shape[0], *map(_content, tensors))
    mask = _masks.pop(key, None)
    if mask is None:
        addresses = ((tensor.data_ptr(), tensor.shape[0]) for tensor in tensors)
        mask = MaskHandle.from_addresses(*addresses, q.shape[0], k.shape[0])
        while len(_masks) >= _MASKS_KEPT:
            _masks.popitem(last=False)
    _masks[key] = mask
    return mask


def empty_result(q, v, with_max_logits: bool):
    """out, lse and max_logits of a forward call, not filled."""
    rows, heads, wide = q.shape[0], q.shape[1], accumulator_dtype(q.dtype)
    return (
        q.new_empty((rows, heads, v.shape[2])),
        q.new_empty((rows, heads), dtype=wide),
        q.new_empty((heads if with_max_logits else 0,), dtype=wide),
    )


def empty_gradients(q, k, v, sink):
    """dq, dk, dv and dsink of a backward call, not filled; dsink is empty without a sink."""
    dsink = q.new_empty((0,)) if sink is None else sink.new_empty(sink.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsink


def _flex_forward_fake(
    q, k, v, q_ranges, k_ranges, types, sink, scale, softcap, sink_layout, with_max_logits
):
    return empty_result(q, v, with_max_logits)


def _flex_forward(
    q, k, v, q_ranges, k_ranges, types, sink, scale, softcap, sink_layout, with_max_logits
):
    mask = _mask_of(q, k, q_ranges, k_ranges, types)
    out, lse, max_logits = empty_result(q, v, with_max_logits)
    native.forward(
        native.flex_forward,
        mask.address,
        (q, k, v, sink, scale, softcap, sink_layout),
        (out, lse, max_logits if with_max_logits else None),
    )
    return out, lse, max_logits


def _flex_backward_fake(
    dout, dlse, q, k, v, out, lse, q_ranges, k_ranges, types, sink, scale, softcap, sink_layout
):
    return empty_gradients(q, k, v, sink)


def _flex_backward(
    dout, dlse, q, k, v, out, lse, q_ranges, k_ranges, types, sink, scale, softcap, sink_layout
):
    mask = _mask_of(q, k, q_ranges, k_ranges, types)
    dq, dk, dv, dsink = empty_gradients(q, k, v, sink)
    native.backward(
        native.flex_backward,
        mask.address,
        (q, k, v, sink, scale, softcap, sink_layout),
        (out, lse, None),
        (
            dout.contiguous(),
            None if dlse is None else dlse.contiguous(),
            dq, dk, dv,
            None if sink is None else dsink,
        ),
    )  # fmt: skip
    return dq, dk, dv, dsink


define(
    "flex_forward",
    "(Tensor q, Tensor k, Tensor v, Tensor q_ranges, Tensor k_ranges, Tensor types, Tensor? sink,"
    " float scale, float softcap, int sink_layout, bool with_max_logits)"
    " -> (Tensor, Tensor, Tensor)",
    _flex_forward_fake,
    _flex_forward,
)
define(
    "flex_backward",
    "(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,"
    " Tensor q_ranges, Tensor k_ranges, Tensor types, Tensor? sink, float scale, float softcap,"
    " int sink_layout) -> (Tensor, Tensor, Tensor, Tensor)",
    _flex_backward_fake,
    _flex_backward,
)
flex_forward_op = torch.ops.magi_attention.flex_forward.default
flex_backward_op = torch.ops.magi_attention.flex_backward.default
