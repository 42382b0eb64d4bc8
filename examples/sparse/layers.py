# SPDX-License-Identifier: Apache-2.0
"""Attention of one causal sequence: dense, MoBA-like and NSA-like. Rows are axis 0."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from magi_attention.api import flex_flash_attn_func, infer_attn_mask_from_cu_seqlens
from magi_attention.functional import block_sparse_attn_func


@dataclass(frozen=True)
class Sizes:
    """block: keys of a block; kept: blocks that a query chooses; window: keys before a query that
    the NSA-like layer sees whatever it chooses.
    """

    dim: int = 64
    heads: int = 4
    heads_kv: int = 2
    block: int = 16
    kept: int = 4
    window: int = 32

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class Dense(nn.Module):
    """Causal attention; the projections of all layers here."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        wide = sizes.heads_kv * sizes.head_dim
        self.query = nn.Linear(sizes.dim, sizes.dim, bias=False)
        self.key = nn.Linear(sizes.dim, wide, bias=False)
        self.value = nn.Linear(sizes.dim, wide, bias=False)
        self.out = nn.Linear(sizes.dim, sizes.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, dim] -> [rows, dim]."""
        rows, dim = x.shape[0], self.sizes.head_dim
        q, k, v = (project(x).view(rows, -1, dim) for project in (self.query, self.key, self.value))
        return self.out(self.attend(x, q, k, v).flatten(1))

    def attend(self, x, q, k, v) -> torch.Tensor:
        """[rows, heads, head_dim]."""
        return causal(q, k, v)


class Moba(Dense):
    """Each query sees, in one softmax, its own block up to itself and those earlier blocks whose
    mean key suits it best.
    """

    def attend(self, x, q, k, v) -> torch.Tensor:
        sizes = self.sizes
        with torch.no_grad():
            means = blocks_of(k, sizes.block).mean(1)
            chosen = best_blocks(scores_of(q, means), sizes.kept - 1, sizes.block)
            own = torch.arange(q.shape[0], device=q.device).view(-1, 1, 1) // sizes.block
            own = own.expand(-1, sizes.heads_kv, 1).to(torch.int32)
        out, _ = block_sparse_attn_func(
            q, k, v, block_lists=torch.cat((chosen, own), dim=2), q_block_size=1,
            k_block_size=sizes.block, is_causal=True,
        )  # fmt: skip
        return out


class Nsa(Dense):
    """Three branches, mixed by a gate that every query and head learns: compressed keys of all
    earlier blocks, all keys of those blocks that the compressed ones speak for, and a window.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        wide = sizes.block * sizes.head_dim
        self.compress_key = nn.Linear(wide, sizes.head_dim, bias=False)
        self.compress_value = nn.Linear(wide, sizes.head_dim, bias=False)
        self.gate = nn.Linear(sizes.dim, 3 * sizes.heads)

    def attend(self, x, q, k, v) -> torch.Tensor:
        sizes = self.sizes
        short_k = self.compress_key(as_blocks(k, sizes.block))
        short_v = self.compress_value(as_blocks(v, sizes.block))
        with torch.no_grad():
            chosen = best_blocks(scores_of(q, short_k), sizes.kept, sizes.block)
        branches = (
            earlier_blocks(q, short_k, short_v, sizes.block),
            chosen_blocks(q, k, v, chosen, sizes.block),
            causal(q, k, v, sizes.window),
        )
        gates = self.gate(x).sigmoid().view(x.shape[0], sizes.heads, 3, 1)
        return (torch.stack(branches, dim=2) * gates).sum(2)


def blocks_of(x: torch.Tensor, block: int) -> torch.Tensor:
    """Whole blocks of rows: [rows, heads, dim] -> [blocks, block, heads, dim]."""
    whole = x.shape[0] // block
    return x[: whole * block].unflatten(0, (whole, block))


def as_blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    """Whole blocks with their keys side by side: [blocks, heads, block * dim]."""
    return blocks_of(x, block).transpose(1, 2).flatten(2)


def scores_of(q: torch.Tensor, short_k: torch.Tensor) -> torch.Tensor:
    """How well a block's short key suits a query, summed over the query heads of a kv head:
    [rows, heads_kv, blocks].
    """
    grouped = q.unflatten(1, (short_k.shape[1], -1)).sum(2)
    return torch.einsum("qhd,khd->qhk", grouped, short_k)


def best_blocks(scores: torch.Tensor, kept: int, block: int) -> torch.Tensor:
    """int32 [rows, heads_kv, kept]: the best of the blocks that end before a query; -1 where there
    are fewer. A choice that knew later rows would tell of them.
    """
    rows, _, blocks = scores.shape
    ends = (torch.arange(blocks, device=scores.device) + 1) * block
    is_later = ends > torch.arange(rows, device=scores.device).view(-1, 1, 1)
    best = scores.masked_fill(is_later, float("-inf")).topk(min(kept, blocks), dim=-1)
    return best.indices.masked_fill(best.values.isneginf(), -1).to(torch.int32)


def causal(q, k, v, window: int = -1) -> torch.Tensor:
    """Attention to all earlier keys, or to `window` of them, and to the query's own."""
    rows = [0, q.shape[0]]
    is_whole = window < 0
    bounds = (-1, -1) if is_whole else (window, 0)
    q_ranges, k_ranges, types, *_ = infer_attn_mask_from_cu_seqlens(rows, rows, is_whole, bounds)
    numbers = torch.tensor([kind.to_int_type() for kind in types], dtype=torch.int32)
    return flex_flash_attn_func(q, k, v, q_ranges.to_tensor(), k_ranges.to_tensor(), numbers)[0]


def earlier_blocks(q, short_k, short_v, block: int) -> torch.Tensor:
    """Attention to the short keys of blocks that end before a query; queries of the first block
    see nothing and get 0.
    """
    begins = torch.arange(1, -(-q.shape[0] // block), dtype=torch.int32) * block
    q_ranges = torch.stack((begins, (begins + block).clamp(max=q.shape[0])), dim=1)
    k_ranges = torch.stack((torch.zeros_like(begins), begins // block), dim=1)
    return flex_flash_attn_func(q, short_k, short_v, q_ranges, k_ranges)[0]


def chosen_blocks(q, k, v, lists: torch.Tensor, block: int) -> torch.Tensor:
    """Attention of every query to the blocks of its list: gathered on the CPU, by ranges on a
    GPU.
    """
    if q.is_cuda:
        sizes = {"q_block_size": 1, "k_block_size": block}
        return block_sparse_attn_func(q, k, v, block_lists=lists, **sizes)[0]
    options = {"index_sparse_indices": lists, "sparse_k_block_size": block}
    return flex_flash_attn_func(q, k, v, **options)[0]


KINDS: dict[str, type[Dense]] = {"dense": Dense, "moba": Moba, "nsa": Nsa}
