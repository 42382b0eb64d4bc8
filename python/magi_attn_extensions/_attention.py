# SPDX-License-Identifier: Apache-2.0
"""Attention of batches and of packed documents with a sink, by FlashAttention's masks."""

from __future__ import annotations

import torch

from magi_attention import masks
from magi_attention.api import flex_flash_attn_func
from magi_attn_extensions import _installed
from magi_attn_extensions._installed import Options


def attend_packed(q, k, v, bounds: tuple, longest: tuple, options: Options):
    """q [rows_q, heads_q, dim], k, v [rows_k, heads_kv, dim] of documents between bounds of queries
    and of keys, and the lengths of the longest -> out, and lse [heads_q, rows_q] where it is asked
    for.
    """
    if _installed.serves(options.release, q, v):
        on_device = (torch.as_tensor(b, dtype=torch.int32, device=q.device) for b in bounds)
        return _installed.attend(q, k, v, options._replace(bounds=(*on_device, *longest)))
    return _packed(q, k, v, *bounds, options)


def _packed(q, k, v, cu_seqlens_q, cu_seqlens_k, options: Options):
    """attend_packed by the library's own kernels."""
    mask = masks.from_cu_seqlens(
        cu_seqlens_q, cu_seqlens_k, causal=options.causal, window_size=options.window_size
    )
    out, meta = flex_flash_attn_func(
        q, k, v, *mask.tensors("cpu"), sink=options.sink, sink_layout=options.sink_layout,
        softmax_scale=options.softmax_scale, softcap=options.softcap,
        deterministic=options.deterministic, sm_margin=options.sm_margin,
    )  # fmt: skip
    return (out, meta.lse.transpose(0, 1)) if options.return_attn_probs else out


def attend_batch(q, k, v, options: Options):
    """q [batch, rows_q, heads_q, dim], k, v [batch, rows_k, heads_kv, dim] -> out, and lse [batch,
    heads_q, rows_q] where it is asked for. A sink of every row is [batch, rows_q, sinks, heads_q].
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ValueError(
                f"{name} has {tensor.dim()} axes; allowed: 4, [batch, rows, heads, head_dim]"
            )
    batch, rows_q, rows_k = q.shape[0], q.shape[1], k.shape[1]
    if k.shape[0] != batch:
        raise ValueError(f"k has a batch of {k.shape[0]}; allowed: {batch}, that of q")
    if options.sink is not None and options.sink_layout == "ssh":
        options = options._replace(sink=options.sink.flatten(0, 1))
    if _installed.serves(options.release, q, v):
        return _installed.attend(q, k, v, options)
    bounds = ([rows * index for index in range(batch + 1)] for rows in (rows_q, rows_k))
    found = _packed(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), *bounds, options)
    if not options.return_attn_probs:
        return found.unflatten(0, (batch, rows_q))
    out, lse = found
    return out.unflatten(0, (batch, rows_q)), lse.unflatten(1, (batch, rows_q)).transpose(0, 1)
