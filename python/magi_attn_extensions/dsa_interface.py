# SPDX-License-Identifier: Apache-2.0
"""Attention of every query to keys that an indexer has chosen for it."""

from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import flex_attention

from magi_attention.api import flex_flash_attn_func
from magi_attention.functional import block_sparse_attn_func
from magi_attention.functional._checks import check_params, check_qkv
from magi_attention.functional._operators import check_lists

# Names of backends of release 1.1.1.
_OLDER = {"ffa_index_attn": "ffa_index_sparse", "ffa_sparse_load": "ffa_block_sparse"}
_BACKENDS = ("ffa_index_sparse", "ffa_block_sparse", "flex", "sdpa")


def dsa_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    index_sparse_indices: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    backend: str = "ffa_index_sparse",
    sparse_k_block_size: int = 128,
    *,
    index_map: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [rows_q, heads_q, dim of v] and lse [rows_q, heads_q] of q [rows_q, heads_q, dim] over
    the keys of k, v [rows_k, heads_kv, dim] that stand in index_sparse_indices, int32 [rows_q,
    heads_kv, topk]. Gradients come through both. Entries come in any order; -1 is none; one that
    stands n times counts n times.

    backend: "ffa_index_sparse": single keys are gathered. "ffa_block_sparse": entries are
    blocks of sparse_k_block_size keys (1 to 256), which become ranges. "flex" and
    "sdpa": torch's flex_attention and scaled_dot_product_attention under a dense mask of rows_q x
    rows_k numbers for each kv head, to compare with; torch gives "flex" no gradients on the CPU.
    deterministic: as in flex_flash_attn_func.

    index_map and the backends "ffa_index_attn" and "ffa_sparse_load" are those of release 1.1.1:
    int32 [heads_kv, rows_q, topk] of single keys whatever the backend. ValueError or TypeError
    names a wrong argument.
    """
    indices, block = index_sparse_indices, sparse_k_block_size
    if (indices is None) == (index_map is None):
        what = "is missing" if indices is None else "is given beside index_map"
        raise ValueError(f"index_sparse_indices {what}; allowed: one of index_map and it")
    if index_map is not None:
        if not isinstance(index_map, torch.Tensor) or index_map.dtype != torch.int32:
            seen = getattr(index_map, "dtype", type(index_map).__name__)
            raise TypeError(f"index_map is {seen}; allowed: an int32 tensor")
        if index_map.dim() != 3:
            shape = list(index_map.shape)
            raise ValueError(f"index_map.shape is {shape}; allowed: [heads_kv, rows_q, topk]")
        indices, block = index_map.transpose(0, 1), 1
    block = 1 if backend == "ffa_sparse_load" else block
    backend = _OLDER.get(backend, backend)
    options = {"softmax_scale": softmax_scale, "deterministic": deterministic}
    if backend == "ffa_index_sparse":
        out, meta = flex_flash_attn_func(q, k, v, index_sparse_indices=indices, **options)
    elif backend == "ffa_block_sparse":
        sizes = {"q_block_size": 1, "k_block_size": block}
        out, meta = block_sparse_attn_func(q, k, v, block_lists=indices, **sizes, **options)
    elif backend in _BACKENDS:
        q, k, v = check_qkv(q, k, v)
        indices = check_lists(indices, 1, (q.shape[0], k.shape[1]), q.device)
        check_params(softmax_scale, 0.0, q.dtype)
        return _attend_densely(q, k, v, _log_counts(indices, k.shape[0]), softmax_scale, backend)
    else:
        raise ValueError(f"backend is {backend!r}; allowed: {', '.join((*_BACKENDS, *_OLDER))}")
    return out, meta.lse


def _log_counts(indices: torch.Tensor, rows_k: int) -> torch.Tensor:
    """float32 [heads_kv, rows_q, rows_k]: log of how often a list names a key."""
    is_key = (indices >= 0) & (indices < rows_k)
    lists = torch.where(is_key, indices, rows_k).to(torch.int64).transpose(0, 1)
    counts = torch.zeros((*lists.shape[:2], rows_k + 1), device=indices.device)
    counts.scatter_add_(2, lists, torch.ones(lists.shape, device=indices.device))
    return counts[..., :rows_k].log()


def _attend_densely(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor,
    softmax_scale: float | None,
    backend: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """bias: _log_counts."""
    group = q.shape[1] // k.shape[1]
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    if backend == "flex":
        out, lse = flex_attention(
            q, k, v, score_mod=lambda score, b, h, i, j: score + bias[h // group, i, j],
            scale=scale, enable_gqa=True, return_lse=True,
        )  # fmt: skip
        return out[0].transpose(0, 1), lse[0].transpose(0, 1)
    bias = bias.repeat_interleave(group, 0).to(torch.promote_types(q.dtype, torch.float32))
    blind = bias.isneginf().all(-1, keepdim=True)
    seen = bias.masked_fill(blind, 0.0)  # a row without keys would be NaN
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=seen.to(q.dtype).unsqueeze(0), scale=scale, enable_gqa=True
    )
    scores = q[0].to(seen.dtype) @ k[0].to(seen.dtype).repeat_interleave(group, 0).mT * scale
    lse = (scores + seen).logsumexp(-1).masked_fill(blind[..., 0], float("-inf"))
    return out[0].masked_fill(blind, 0.0).transpose(0, 1), lse.transpose(0, 1)
