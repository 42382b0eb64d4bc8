# SPDX-License-Identifier: Apache-2.0
"""The arguments of FlashAttention 2."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from magi_attn_extensions._attention import Options, attend_batch, attend_packed, refuse

Tensor = torch.Tensor


def fa2_func_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """flash_attn_func: q [batch, rows_q, heads_q, dim], k, v [batch, rows_k, heads_kv, dim].
    Returns out like q, or with return_attn_probs (out, lse [batch, heads_q, rows_q]).
    NotImplementedError for dropout_p and alibi_slopes.
    """
    refuse(dropout_p=dropout_p, alibi_slopes=alibi_slopes)
    options = Options(
        2, sink, sink_layout, softmax_scale, causal, window_size, softcap, deterministic,
        return_attn_probs=return_attn_probs,
    )  # fmt: skip
    return attend_batch(q, k, v, options)


def fa2_qkvpacked_func_with_sink(
    qkv: Tensor,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """flash_attn_qkvpacked_func: qkv [batch, rows, 3, heads, dim]. Returns out like q, or with
    return_attn_probs (out, lse [batch, heads_q, rows_q]). NotImplementedError for dropout_p and
    alibi_slopes.
    """
    return fa2_func_with_sink(
        *qkv.unbind(2), sink, sink_layout, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def fa2_kvpacked_func_with_sink(
    q: Tensor,
    kv: Tensor,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """flash_attn_kvpacked_func: q [batch, rows_q, heads_q, dim], kv [batch, rows_k, 2, heads_kv,
    dim]. Returns out like q, or with return_attn_probs (out, lse [batch, heads_q, rows_q]).
    NotImplementedError for dropout_p and alibi_slopes.
    """
    return fa2_func_with_sink(
        q, *kv.unbind(2), sink, sink_layout, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def fa2_varlen_func_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
):
    """flash_attn_varlen_func: q [rows_q, heads_q, dim], k, v [rows_k, heads_kv, dim], documents
    between the bounds cu_seqlens_q and cu_seqlens_k. max_seqlen_q, max_seqlen_k: of the longest.
    Returns out like q, or with return_attn_probs (out, lse [heads_q, rows_q]). NotImplementedError
    for dropout_p, alibi_slopes and block_table.
    """
    refuse(dropout_p=dropout_p, alibi_slopes=alibi_slopes, block_table=block_table)
    options = Options(
        2, sink, sink_layout, softmax_scale, causal, window_size, softcap, deterministic,
        return_attn_probs=return_attn_probs,
    )  # fmt: skip
    bounds, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    return attend_packed(q, k, v, bounds, longest, options)


def fa2_varlen_qkvpacked_func_with_sink(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """flash_attn_varlen_qkvpacked_func: qkv [rows, 3, heads, dim], documents between the bounds
    cu_seqlens. max_seqlen: of the longest. Returns out like q, or with return_attn_probs (out, lse
    [heads_q, rows_q]). NotImplementedError for dropout_p and alibi_slopes.
    """
    return fa2_varlen_func_with_sink(
        *qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, sink,
        sink_layout, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def fa2_varlen_kvpacked_func_with_sink(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """flash_attn_varlen_kvpacked_func: q [rows_q, heads_q, dim], kv [rows_k, 2, heads_kv, dim],
    documents between the bounds. max_seqlen_q, max_seqlen_k: of the longest. Returns out like q,
    or with return_attn_probs (out, lse [heads_q, rows_q]). NotImplementedError for dropout_p and
    alibi_slopes.
    """
    return fa2_varlen_func_with_sink(
        q, *kv.unbind(1), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, sink,
        sink_layout, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip
