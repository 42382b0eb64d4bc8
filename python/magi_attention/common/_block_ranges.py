# SPDX-License-Identifier: Apache-2.0
"""Ranges of blocks of keys that blocks of queries see, given as a mask of blocks or as lists.
Everything is an operator of torch on the tensors' device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

FULL, CAUSAL = 0, 1


class Blocks(NamedTuple):
    """rows of q and k, and rows of a block; the last block of each side may be shorter. is_causal:
    query i sees no key after i + rows_k - rows_q.
    """

    rows_q: int
    rows_k: int
    q_size: int
    k_size: int
    is_causal: bool = False

    @property
    def num_q(self) -> int:
        return -(-self.rows_q // self.q_size)

    @property
    def num_k(self) -> int:
        return -(-self.rows_k // self.k_size)


class Runs(NamedTuple):
    """Runs of neighbouring blocks of keys, int64 [n] each: head, block of queries, first block of
    keys, last block + 1. A run without blocks is none.
    """

    head: torch.Tensor
    q_block: torch.Tensor
    k_begin: torch.Tensor
    k_end: torch.Tensor


class FoldedRanges(NamedTuple):
    """q_ranges, k_ranges and attn_type_map of heads folded into rows. error_word: int64 [2]: the
    number of entries of lists that are no block, or of runs of a mask beyond the capacity; and the
    place of the first such entry in row-major order, or -1.
    """

    q_ranges: torch.Tensor
    k_ranges: torch.Tensor
    types: torch.Tensor
    error_word: torch.Tensor


def runs_of_mask(mask: torch.Tensor, capacity: int | None) -> tuple[Runs, torch.Tensor]:
    """Runs of a mask bool [heads, q_blocks, k_blocks], and the number beyond capacity, int64 [].
    capacity None: room for all; the host waits for a GPU.
    """
    heads, num_q, num_k = mask.shape
    edge = mask.new_zeros((heads, num_q, 1))
    is_first = mask & ~torch.cat((edge, mask[..., :-1]), dim=2)
    is_last = mask & ~torch.cat((mask[..., 1:], edge), dim=2)
    if capacity is None:
        first, last = (flags.flatten().nonzero().flatten() for flags in (is_first, is_last))
        missing = torch.zeros((), dtype=torch.int64, device=mask.device)
        k_end = last % num_k + 1
    else:
        first, count = _compacted(is_first.flatten(), capacity)
        last, _ = _compacted(is_last.flatten(), capacity)
        is_run = torch.arange(capacity, device=mask.device) < count
        k_end = torch.where(is_run, last % num_k + 1, 0)
        missing = (count - capacity).clamp(min=0)
    row = first // num_k
    return Runs(row // num_q, row % num_q, first % num_k, k_end), missing


def _compacted(flags: torch.Tensor, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the places of the first `capacity` flags, followed by 0, and the number of flags."""
    place = flags.to(torch.int64).cumsum(0)
    target = torch.where(flags, (place - 1).clamp(max=capacity), capacity)
    found = torch.zeros(capacity + 1, dtype=torch.int64, device=flags.device)
    found.scatter_(0, target, torch.arange(flags.shape[0], device=flags.device))
    return found[:capacity], place[-1] if flags.shape[0] else flags.sum()


def counts_of_lists(lists: torch.Tensor, num_k: int) -> torch.Tensor:
    """Counts how often each block of queries sees each block of keys, uint8 [heads, q_blocks,
    num_k], by lists int [q_blocks, heads, n] with n up to 255. Entries that are no block count as
    none.
    """
    num_q, heads, _ = lists.shape
    is_block = (lists >= 0) & (lists < num_k)
    place = torch.where(is_block, lists, num_k).to(torch.int64).transpose(0, 1)
    counts = torch.zeros((heads, num_q, num_k + 1), dtype=torch.uint8, device=lists.device)
    ones = torch.ones((), dtype=torch.uint8, device=lists.device).expand_as(place)
    return counts.scatter_add_(2, place, ones)[..., :num_k].contiguous()


def error_word_of_lists(lists: torch.Tensor, num_k: int) -> torch.Tensor:
    """int64 [2]: the number of entries that are neither a block nor -1, and the place of the first
    in row-major order, or -1.
    """
    is_bad = ((lists < -1) | (lists >= num_k)).flatten()
    num_bad = is_bad.sum()
    first = is_bad.to(torch.uint8).argmax() if is_bad.shape[0] else num_bad
    return torch.stack((num_bad, torch.where(num_bad > 0, first, -1)))


def runs_of_lists(lists: torch.Tensor, num_k: int) -> Runs:
    """One run for each entry of lists int [q_blocks, heads, n] of blocks of keys. -1 and entries
    that are no block are none.
    """
    num_q, heads, _ = lists.shape
    entry = lists.to(torch.int64)
    is_block = (entry >= 0) & (entry < num_k)
    q_block = torch.arange(num_q, device=lists.device).view(-1, 1, 1).expand_as(entry)
    head = torch.arange(heads, device=lists.device).view(1, -1, 1).expand_as(entry)
    begin = torch.where(is_block, entry, 0)
    runs = Runs(head, q_block, begin, begin + is_block.to(torch.int64))
    return Runs(*(part.flatten() for part in runs))


def folded_ranges(runs: Runs, blocks: Blocks, error_word: torch.Tensor) -> FoldedRanges:
    """Ranges of runs. A run of causal blocks has two: the rows whose last key is inside, and those
    that see all of it. Empty ranges are [0, 0).
    """
    q_begin = runs.q_block * blocks.q_size
    q_end = (q_begin + blocks.q_size).clamp(max=blocks.rows_q)
    k_begin = runs.k_begin * blocks.k_size
    k_end = (runs.k_end * blocks.k_size).clamp(max=blocks.rows_k)
    if blocks.is_causal:
        shift = blocks.rows_k - blocks.rows_q  # the last key of query i is i + shift
        cut_begin, cut_end = (k_begin - shift).maximum(q_begin), (k_end - shift).minimum(q_end)
        cut = _rectangles(runs, (cut_begin, cut_end, k_begin, cut_end + shift), blocks)
        rest = _rectangles(runs, ((k_end - shift).maximum(q_begin), q_end, k_begin, k_end), blocks)
        parts = ((*cut, CAUSAL), (*rest, FULL))
    else:
        parts = ((*_rectangles(runs, (q_begin, q_end, k_begin, k_end), blocks), FULL),)
    types = [torch.full_like(q[:, 0], kind) for q, _, kind in parts]
    q_ranges, k_ranges = (torch.cat([part[side] for part in parts]) for side in (0, 1))
    return FoldedRanges(q_ranges, k_ranges, torch.cat(types), error_word)


def _rectangles(runs: Runs, bounds: tuple, blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 [n, 2] of q and of k, heads folded into rows."""
    q_begin, q_end, k_begin, k_end = bounds
    is_there = (q_begin < q_end) & (k_begin < k_end)
    q_first, k_first = runs.head * blocks.rows_q, runs.head * blocks.rows_k
    q = torch.stack((q_begin + q_first, q_end + q_first), dim=1)
    k = torch.stack((k_begin + k_first, k_end + k_first), dim=1)
    return tuple((x * is_there.unsqueeze(1)).to(torch.int32) for x in (q, k))
