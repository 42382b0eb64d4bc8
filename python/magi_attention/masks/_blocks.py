# SPDX-License-Identifier: Apache-2.0
"""Masks of blocks of rows."""

from __future__ import annotations

import torch

from magi_attention._native.handles import MaskHandle
from magi_attention.common._arguments import MAX_ROWS, as_bool, check_int
from magi_attention.common._block_ranges import Blocks, folded_ranges, runs_of_mask
from magi_attention.masks._mask import Mask, compact


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
    key behind i + rows_k - rows_q, inside blocks too. Waits for a mask on a GPU. ValueError or
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
        raise ValueError(
            f"visible has shape {list(visible.shape)}; allowed: [{blocks.num_q}, {blocks.num_k}]"
        )
    runs, _ = runs_of_mask(visible.cpu().unsqueeze(0), None)
    ranges = folded_ranges(runs, blocks, torch.zeros(2, dtype=torch.int64, device="cpu"))
    is_there = ranges.q_ranges[:, 1] > ranges.q_ranges[:, 0]
    lists = [part[is_there].tolist() for part in ranges[:3]]
    return compact(Mask(MaskHandle.from_ranges(*lists, rows_q, rows_k)))
