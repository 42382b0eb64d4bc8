# SPDX-License-Identifier: Apache-2.0
"""The arguments of FlashAttention 3."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from magi_attn_extensions._attention import (
    Options,
    attend_batch,
    attend_packed,
    refuse,
    split_heads,
)

Tensor = torch.Tensor


def fa3_func_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Sequence[int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
):
    """flash_attn_func: q [batch, rows_q, heads_q, dim], k, v [batch, rows_k, heads_kv, dim].
    Returns out like q, or with return_attn_probs (out, lse [batch, heads_q, rows_q]). num_splits
    and pack_gqa have no effect on results. NotImplementedError for qv, descaling and
    attention_chunk.
    """
    refuse(
        qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        attention_chunk=attention_chunk,
    )  # fmt: skip
    options = Options(
        3, sink, sink_layout, softmax_scale, causal, window_size, softcap, deterministic, sm_margin,
        return_attn_probs,
    )  # fmt: skip
    return attend_batch(q, k, v, options)


def fa3_varlen_func_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Sequence[int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
):
    """flash_attn_varlen_func: q [rows_q, heads_q, dim], k, v [rows_k, heads_kv, dim], documents
    between the bounds. Returns out like q, or with return_attn_probs (out, lse [heads_q, rows_q]).
    max_seqlen_q, max_seqlen_k: of the longest. num_splits and pack_gqa have no effect on results.
    NotImplementedError for qv, descaling and attention_chunk, seqused_q and seqused_k.
    """
    refuse(
        seqused_q=seqused_q, seqused_k=seqused_k, qv=qv, q_descale=q_descale, k_descale=k_descale,
        v_descale=v_descale, attention_chunk=attention_chunk,
    )  # fmt: skip
    options = Options(
        3, sink, sink_layout, softmax_scale, causal, window_size, softcap, deterministic, sm_margin,
        return_attn_probs,
    )  # fmt: skip
    bounds, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    return attend_packed(q, k, v, bounds, longest, options)


def fa3_qkvpacked_func_with_sink(
    qkv: Tensor,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Sequence[int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
):
    """flash_attn_qkvpacked_func: qkv [batch, rows, 3, heads, dim], or with num_heads_q [batch,
    rows, heads_q + 2 * heads_kv, dim]. Returns out like q, or with return_attn_probs (out, lse
    [batch, heads_q, rows]). NotImplementedError for descaling and attention_chunk.
    """
    return fa3_func_with_sink(
        *split_heads(qkv, num_heads_q), sink, sink_layout, softmax_scale, causal, None, q_descale,
        k_descale, v_descale, window_size, attention_chunk, softcap, deterministic=deterministic,
        sm_margin=sm_margin, return_attn_probs=return_attn_probs,
    )  # fmt: skip
