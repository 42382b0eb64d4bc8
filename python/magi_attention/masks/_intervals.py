# SPDX-License-Identifier: Apache-2.0
"""Masks that kernels take as numbers for each row or key: interval ends, FlashMask's columns."""

from __future__ import annotations

from typing import Any

import torch

from magi_attention._native.handles import MaskHandle
from magi_attention.common._arguments import MAX_ROWS, as_bool, check_int
from magi_attention.masks._mask import (
    Mask,
    as_integers,
    check_form,
    check_mask,
    keys_in_words,
    padded_runs,
    to_ints,
)


def from_interval_ends(ends: Any, rows_k: int) -> Mask:
    """Row i sees the keys [0, ends[0, i]) and [ends[1, i], ends[2, i]) and so on: int [n, rows_q]
    or [1, n, rows_q] with an odd n, the mask of cuDNN's flex attention and of FlashAttention-4's
    interval functions. Pairs that do not ascend are empty. ValueError, by row, for ends outside the
    keys.
    """
    ends = _one_of_axes("ends", ends, 2)
    rows_k = check_int("rows_k", rows_k, 0, MAX_ROWS)
    return Mask(MaskHandle.from_form("interval_ends", ends=ends, rows_k=rows_k))


def to_interval_ends(mask: Mask, num_ends: int | None = None) -> torch.Tensor:
    """The inverse: int32 [num_ends, rows_q], ascending in each row, rows_k where no interval is
    left. num_ends: odd, default as few as are needed. ValueError that names the first row which
    needs more.
    """
    check_mask(mask)
    runs = padded_runs(mask, mask.rows_k)
    counts = (runs[..., 0] < mask.rows_k).sum(1)
    has_first = (runs[:, 0, 0] == 0) & (counts > 0) if runs.shape[1] else counts > 0
    needed = 1 + 2 * (counts - has_first.long())
    most = int(needed.max()) if len(needed) else 1
    if num_ends is None:
        num_ends = most
    elif check_int("num_ends", num_ends, 1) % 2 == 0:
        raise ValueError(f"num_ends is {num_ends}; allowed: odd numbers")
    short = (needed > num_ends).nonzero()
    if len(short):
        row = int(short[0])
        raise ValueError(
            f"row {row} sees {keys_in_words(mask, row)}; allowed: what {num_ends} ends tell, of "
            f"{int(needed[row])}"
        )
    flat = runs.flatten(1)
    # A row whose first run does not begin at key 0 has an empty first interval before it.
    shifted = torch.nn.functional.pad(flat, (1, 1), value=mask.rows_k)
    shifted[:, 0] = 0
    found = torch.where(
        has_first[:, None], torch.nn.functional.pad(flat, (0, 2), value=mask.rows_k)[:, 1:],
        shifted[:, : flat.shape[1] + 1],
    )  # fmt: skip
    found = torch.nn.functional.pad(found, (0, num_ends), value=mask.rows_k)[:, :num_ends]
    return found.T.int().contiguous()


def from_flashmask(
    startend_row_indices: Any, *, causal: bool = True, rows_q: int | None = None
) -> Mask:
    """FlashMask's columns: key j is hidden from rows of intervals, int [rows_k, n] or
    [1, 1, rows_k, n]. causal, n 1: from [0] on; n 2: [0] to [1]; and from rows before j. Not
    causal, n 2: from [0] on, and before [1]; n 4: [0] to [1], and [2] to [3]. Ends are exclusive,
    reversed intervals empty. rows_q: default rows_k.
    """
    fields = {"causal": as_bool("causal", causal), "rows_q": rows_q}
    if rows_q is not None:
        check_int("rows_q", rows_q, 0, MAX_ROWS)
    indices = _one_of_axes("startend_row_indices", startend_row_indices, 2)
    return Mask(MaskHandle.from_form("flashmask", startend_row_indices=indices, **fields))


def to_flashmask(mask: Mask, *, causal: bool = True, num_bounds: int | None = None) -> torch.Tensor:
    """The inverse: int32 [1, 1, rows_k, n], n of 1 or 2 (causal), 2 or 4 (not), num_bounds or as
    few as are needed. ValueError that names the first row which needs more.
    """
    check_mask(mask)
    allowed = (1, 2) if as_bool("causal", causal) else (2, 4)
    if num_bounds is not None and num_bounds not in allowed:
        raise ValueError(f"num_bounds is {num_bounds}; allowed: {allowed[0]}, {allowed[1]}")
    rows, rows_k = mask.rows_q, mask.rows_k
    # The rows that a key is hidden from lie between those that see it.
    runs = padded_runs(mask.transposed(), rows)
    begins = torch.nn.functional.pad(runs[..., 1], (1, 0), value=0)
    ends = torch.nn.functional.pad(runs[..., 0], (0, 1), value=rows)
    if causal:
        begins = torch.maximum(begins, torch.arange(rows_k, device="cpu").clamp(max=rows)[:, None])
    begins, order = torch.where(ends > begins, begins, rows).sort(1)
    ends = torch.where(begins < rows, ends.gather(1, order), rows)
    pairs = torch.nn.functional.pad(torch.stack((begins, ends), -1), (0, 0, 0, 2), value=rows)
    found = _bounds_of(pairs, rows, causal, num_bounds)
    expressed = from_flashmask(found, causal=causal, rows_q=rows)
    check_form(mask, expressed, f"a FlashMask of {found.shape[-1]} bounds with causal={causal}")
    return found


def _bounds_of(
    pairs: torch.Tensor, rows: int, causal: bool, num_bounds: int | None
) -> torch.Tensor:
    """The numbers of FlashMask for hidden intervals [columns, 2 or more, 2] in ascending order."""
    first, second = pairs[:, 0], pairs[:, 1]
    if causal:
        if num_bounds is None:
            num_bounds = 1 if bool((first[:, 1] == rows).all()) else 2
        columns = first[:, :num_bounds]
    else:
        is_upper = (first[:, 0] == 0) & (first[:, 1] > 0)
        none = torch.full_like(first, rows)
        upper = torch.where(is_upper[:, None], first, none)
        lower = torch.where(is_upper[:, None], second, first)
        if num_bounds is None:
            has_two = (pairs[:, 1, 0] < rows) & ~is_upper | (pairs[:, 2, 0] < rows)
            num_bounds = 4 if bool((has_two | (lower[:, 1] < rows)).any()) else 2
        if num_bounds == 2:
            columns = torch.stack((lower[:, 0], torch.where(is_upper, first[:, 1], 0)), 1)
        else:
            upper = torch.where(is_upper[:, None], first, second)
            columns = torch.cat((lower, upper), 1)
    return columns.int().contiguous()[None, None]


def _one_of_axes(name: str, value: Any, num_axes: int) -> torch.Tensor:
    """The numbers of one mask; leading axes (batch, heads) must hold one, or equal ones."""
    tensor = as_integers(name, value)
    for _ in range(tensor.dim() - num_axes):
        if tensor.shape[0] == 0 or not bool((tensor == tensor[:1]).all()):
            raise ValueError(
                f"{name} has shape {list(tensor.shape)} with masks that differ; allowed: one mask "
                "for all heads of one sequence"
            )
        tensor = tensor[0]
    return to_ints(name, tensor, num_axes)
