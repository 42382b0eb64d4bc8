# SPDX-License-Identifier: Apache-2.0
"""The arguments of FlashAttention 4."""

from __future__ import annotations

import torch

from magi_attn_extensions._attention import Options, attend_batch, attend_packed

Tensor = torch.Tensor


def fa4_func_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    softmax_scale: float | None = None,
    causal: bool = False,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """flash_attn_func: q [batch, rows_q, heads_q, dim], k, v [batch, rows_k, heads_kv, dim].
    Returns out like q, or with return_attn_probs (out, lse [batch, heads_q, rows_q]). num_splits
    and pack_gqa have no effect on results.
    """
    options = Options(
        4, sink, sink_layout, softmax_scale, causal, softcap=softcap, deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )  # fmt: skip
    return attend_batch(q, k, v, options)


def fa4_varlen_func_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    softmax_scale: float | None = None,
    causal: bool = False,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """flash_attn_varlen_func: q [rows_q, heads_q, dim], k, v [rows_k, heads_kv, dim], documents
    between the bounds. Returns out like q, or with return_attn_probs (out, lse [heads_q, rows_q]).
    max_seqlen_q, max_seqlen_k: of the longest; num_splits and pack_gqa have no effect on results.
    """
    options = Options(
        4, sink, sink_layout, softmax_scale, causal, softcap=softcap, deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )  # fmt: skip
    bounds, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    return attend_packed(q, k, v, bounds, longest, options)
