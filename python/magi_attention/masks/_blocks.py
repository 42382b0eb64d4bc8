# SPDX-License-Identifier: Apache-2.0
"""Masks of blocks of rows."""

from __future__ import annotations

import torch

from magi_attention._native.handles import MaskHandle
from magi_attention.common._arguments import MAX_ROWS, TRY, as_bool, check_int
from magi_attention.common._block_ranges import Blocks, folded_ranges, runs_of_mask
from magi_attention.masks._mask import Mask, check_form, check_mask, compact


def from_blocks(
    visible: torch.Tensor,
    q_block_size: int,
    k_block_size: int,
    rows_q: int,
    rows_k: int,
    is_causal: bool = False,
) -> Mask:
    """Makes a mask of bool [q_blocks, k_blocks]: which blocks of k_block_size keys each block of
    q_block_size queries sees; the last block of a side may be shorter. is_causal: query i sees no
    key after i + rows_k - rows_q, inside blocks too. Waits for a mask on a GPU. ValueError or
    TypeError names a wrong argument.
    """
    named = ("q_block_size", q_block_size, 1), ("k_block_size", k_block_size, 1)
    for name, value, least in (*named, ("rows_q", rows_q, 0), ("rows_k", rows_k, 0)):
        check_int(name, value, least, MAX_ROWS)
    if not isinstance(visible, torch.Tensor) or visible.dtype != torch.bool:
        kind = getattr(visible, "dtype", type(visible).__name__)
        raise TypeError(f"visible is {kind}; allowed: a bool tensor")
    sizes = rows_q, rows_k, q_block_size, k_block_size
    blocks = Blocks(*sizes, as_bool("is_causal", is_causal))
    if tuple(visible.shape) != (blocks.num_q, blocks.num_k):
        step = f"{TRY}visible.any(0), as a mask is of all heads" if visible.dim() == 3 else ""
        raise ValueError(
            f"visible has shape {list(visible.shape)}; allowed: [{blocks.num_q}, {blocks.num_k}]"
            f"{step}"
        )
    runs, _ = runs_of_mask(visible.cpu().unsqueeze(0), None)
    ranges = folded_ranges(runs, blocks, torch.zeros(2, dtype=torch.int64, device="cpu"))
    is_there = ranges.q_ranges[:, 1] > ranges.q_ranges[:, 0]
    lists = [part[is_there].tolist() for part in ranges[:3]]
    return compact(Mask(MaskHandle.from_ranges(*lists, rows_q, rows_k)))


def to_blocks(
    mask: Mask, q_block_size: int, k_block_size: int, cover: bool = False
) -> torch.Tensor:
    """bool [q_blocks, k_blocks], as from_blocks takes it. ValueError that names the first row which
    sees a part of a block, unless cover: then a block is seen where any pair of it is.
    """
    check_mask(mask)
    size_q = check_int("q_block_size", q_block_size, 1, MAX_ROWS)
    size_k = check_int("k_block_size", k_block_size, 1, MAX_ROWS)
    blocks = Blocks(mask.rows_q, mask.rows_k, size_q, size_k, False)
    q0, q1, k0, k1, low, high = mask.slices.long().unbind(1)
    counts = (q1 - 1) // size_q - q0 // size_q + 1
    of = torch.repeat_interleave(counts)
    block = torch.arange(len(of), device="cpu") - (counts.cumsum(0) - counts)[of]
    block += (q0 // size_q)[of]
    first = torch.maximum(block * size_q, q0[of])
    last = torch.minimum(block * size_q + size_q, q1[of])
    begin = torch.maximum(k0[of], first + low[of])
    end = torch.minimum(k1[of], last + high[of])
    seen = begin < end
    edges = torch.zeros(blocks.num_q, blocks.num_k + 1, dtype=torch.int32, device="cpu")
    one = torch.ones(int(seen.sum()), dtype=torch.int32, device="cpu")
    edges.index_put_((block[seen], begin[seen] // size_k), one, accumulate=True)
    edges.index_put_((block[seen], (end[seen] - 1) // size_k + 1), -one, accumulate=True)
    visible = edges[:, :-1].cumsum(1, dtype=torch.int32) > 0
    if as_bool("cover", cover):
        return visible
    # Blocks show no pair more than the mask where they show as many.
    rows = (mask.rows_q - torch.arange(blocks.num_q, device="cpu") * size_q).clamp(max=size_q)
    keys = visible.sum(1) * size_k
    if blocks.num_k:
        keys -= visible[:, -1] * (blocks.num_k * size_k - mask.rows_k)
    if int((rows * keys).sum()) != mask.area:
        expressed = from_blocks(visible, size_q, size_k, mask.rows_q, mask.rows_k)
        check_form(mask, expressed, f"blocks of {size_q} x {size_k}")
    return visible
