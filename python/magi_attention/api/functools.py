# SPDX-License-Identifier: Apache-2.0
"""Helpers for padding and for describing masks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from magi_attention._deprecation import warn_deprecated
from magi_attention._native.handles import MaskHandle
from magi_attention._native.tensors import as_plain
from magi_attention.common._arguments import (
    MAX_ROWS,
    as_bool,
    check_int,
    check_kind,
    check_window,
    naming,
    without_padding,
)
from magi_attention.common._slices import apply_padding as apply_padding
from magi_attention.common._slices import typed_ranges
from magi_attention.common.device import default_device
from magi_attention.common.enum import AttnMaskType
from magi_attention.common.range import AttnRange
from magi_attention.common.ranges import AttnRanges

_OLD_CHUNK_SIZE = 512


def compute_pad_size(
    total_seqlen_q: int, cp_size: int, chunk_size: int | None = None, *, head_dim: int | None = None
) -> int:
    """Rows to add to total_seqlen_q so that it is a multiple of chunk_size * cp_size. `head_dim` is
    an older release's, without effect but for a DeprecationWarning. ValueError for negative rows
    and sizes below 1.
    """
    if head_dim is not None:
        warn_deprecated("head_dim is deprecated; give chunk_size")
        chunk_size = _OLD_CHUNK_SIZE if chunk_size is None else chunk_size
    if chunk_size is None:
        raise TypeError("chunk_size is missing")
    check_int("cp_size", cp_size, 1)
    check_int("chunk_size", chunk_size, 1)
    return -check_int("total_seqlen_q", total_seqlen_q, 0) % (chunk_size * cp_size)


def squash_batch_dim(x: torch.Tensor) -> torch.Tensor:
    """[batch, seqlen, ...] -> [batch * seqlen, ...]. ValueError for fewer than two axes."""
    check_kind("x", x, torch.Tensor, "a torch.Tensor")
    if x.dim() < 2:
        raise ValueError(f"x has {x.dim()} axes; allowed: 2 or more, [batch, seqlen, ...]")
    return x.flatten(0, 1)


def infer_varlen_mask_from_batch(
    batch_size: int, seq_len: int, device: torch.device | str | int = "cuda"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(cu_seqlens_q, cu_seqlens_k) of batch_size documents of seq_len rows: int32 [batch_size + 1]
    on `device`, "cuda" being host memory where torch has no CUDA. ValueError for negative sizes and
    for more than 2^30 - 1 rows.
    """
    check_int("batch_size", batch_size, 0, MAX_ROWS)
    check_int("seq_len", seq_len, 0, MAX_ROWS // max(batch_size, 1))
    bounds = torch.arange(batch_size + 1, dtype=torch.int32, device=default_device(device))
    bounds *= seq_len
    return bounds, bounds.clone()


def full_attention_to_varlen_attention(
    batch_size: int, seq_len: int, device: torch.device | str | int = "cuda"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Deprecated name of infer_varlen_mask_from_batch."""
    warn_deprecated(
        "full_attention_to_varlen_attention is deprecated; use infer_varlen_mask_from_batch"
    )
    return infer_varlen_mask_from_batch(batch_size, seq_len, device)


def pad_at_dim(
    x: torch.Tensor, dim: int, pad_size: int, value: float = 0.0, side: str = "right"
) -> torch.Tensor:
    """x with pad_size entries of `value` added along `dim`, on the "left" or "right" side. x itself
    for 0. ValueError for a negative pad_size, another side and an axis that x has not.
    """
    _check_axis(x, dim)
    if side not in ("left", "right"):
        raise ValueError(f'side is {side!r}; allowed: "left", "right"')
    if check_int("pad_size", pad_size, 0) == 0:
        return x
    shape = list(x.shape)
    shape[dim] = pad_size
    padding = x.new_full(shape, value)
    return torch.cat((padding, x) if side == "left" else (x, padding), dim)


def unpad_at_dim(x: torch.Tensor, dim: int, pad_size: int) -> torch.Tensor:
    """x without the last pad_size entries along `dim`, a view. ValueError for more entries than x
    has and for an axis that it has not.
    """
    _check_axis(x, dim)
    check_int("pad_size", pad_size, 0, x.shape[dim])
    return x.narrow(dim, 0, x.shape[dim] - pad_size)


def infer_attn_mask_from_sliding_window(
    q_range: AttnRange, k_range: AttnRange, window_size: Sequence[int]
) -> tuple[AttnRanges, AttnRanges, list[AttnMaskType]]:
    """Slices for q_range x k_range under a window of window_size (left, right) keys around the
    diagonal, aligned bottom right; -1: no bound. At most three. Of more queries than keys the first
    ones, which stand above the diagonal, see nothing, whatever the window's right side; in
    magi_attention.masks.from_cu_seqlens they see what it reaches, as in FlashAttention. ValueError
    for ranges that are reversed or negative and for windows below -1.
    """
    for name, attn_range in (("q_range", q_range), ("k_range", k_range)):
        check_kind(name, attn_range, AttnRange, "an AttnRange")
        check_int(f"{name}.start", attn_range.start, 0, MAX_ROWS)
        check_int(f"{name}.end", attn_range.end, attn_range.start, MAX_ROWS)
    mask = MaskHandle.from_window(
        q_range.to_naive_range(), k_range.to_naive_range(), check_window(window_size)
    )
    return typed_ranges(mask)


def infer_attn_mask_from_cu_seqlens(
    cu_seqlens_q: torch.Tensor | Sequence[int],
    cu_seqlens_k: torch.Tensor | Sequence[int],
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    global_window_size: int = 0,
) -> tuple[AttnRanges, AttnRanges, list[AttnMaskType], int, int]:
    """Slices (q_ranges, k_ranges, types) of packed documents between bounds in rows, [n + 1], and
    the numbers of query and key rows; entries below 0 at the end, such as -1, are padding. Reads
    tensors on a GPU back, which waits for them.

    causal excludes a window, which is that of infer_attn_mask_from_sliding_window in each document.
    global_window_size: the first keys of every document that all its rows see, whatever the
    window's left side. ValueError for bounds that do not grow from 0 and for lists of unequal
    lengths.
    """
    bounds = to_bounds("cu_seqlens_q", cu_seqlens_q), to_bounds("cu_seqlens_k", cu_seqlens_k)
    check_int("global_window_size", global_window_size, 0)
    window = check_window(window_size)
    with naming(window="window_size"):
        mask = MaskHandle.from_cu_seqlens(
            *bounds, is_causal=as_bool("causal", causal), window_left=window[0],
            window_right=window[1], num_global=min(global_window_size, MAX_ROWS),
        )  # fmt: skip
    return *typed_ranges(mask), *mask.rows()


def to_bounds(name: str, cu_seqlens: torch.Tensor | Sequence[int]) -> list[int]:
    """cu_seqlens as a list, without padding; TypeError or ValueError naming it unless 1-D integers
    from 0 on.
    """
    if isinstance(cu_seqlens, torch.Tensor):
        if cu_seqlens.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name}.dtype is {cu_seqlens.dtype}; allowed: int32, int64")
        if cu_seqlens.dim() != 1:
            raise ValueError(f"{name} has {cu_seqlens.dim()} axes; allowed: 1")
        if cu_seqlens.is_meta:
            raise ValueError(f"{name} is on meta; allowed: cpu, or a device with memory")
        return without_padding(as_plain(name, cu_seqlens).tolist())
    if isinstance(cu_seqlens, str) or not hasattr(cu_seqlens, "__iter__"):
        check_kind(name, cu_seqlens, torch.Tensor, "an int32 or int64 tensor [n + 1], or a list")
    bounds = without_padding(
        [check_int(f"{name}[{i}]", n, -MAX_ROWS) for i, n in enumerate(cu_seqlens)]
    )
    return [check_int(f"{name}[{i}]", value, 0) for i, value in enumerate(bounds)]


def _check_axis(x: torch.Tensor, dim: int) -> None:
    check_kind("x", x, torch.Tensor, "a torch.Tensor")
    check_int("dim", dim, -x.dim(), x.dim() - 1)
