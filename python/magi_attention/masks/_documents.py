# SPDX-License-Identifier: Apache-2.0
"""Masks of packed documents: bounds, ids of documents, windows, prefixes, Megatron's parameters."""

from __future__ import annotations

from typing import Any

import torch

from magi_attention._native.handles import MaskHandle
from magi_attention.common._arguments import (
    MAX_ROWS,
    as_bool,
    check_int,
    check_window,
    naming,
    without_padding,
)
from magi_attention.masks._mask import (
    Mask,
    check_square,
    check_told,
    compact,
    padded_runs,
    to_ints,
)

Bounds = Any  # a tensor or a sequence of ints


def _to_bounds(name: str, value: Bounds) -> torch.Tensor:
    """int32 [documents + 1], without padding."""
    return without_padding(to_ints(name, value, 1))


def _sum_of(lengths: torch.Tensor) -> torch.Tensor:
    """Bounds of parts of these lengths: int32 [parts + 1]."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()


def from_cu_seqlens(
    cu_seqlens_q: Bounds,
    cu_seqlens_k: Bounds | None = None,
    *,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Mask:
    """Packed documents by their bounds [0, ..., rows], as in FlashAttention; entries below 0 at the
    end, such as -1, are padding. Causal ones are aligned bottom-right; window_size (left, right)
    rows of the diagonal, -1: all; the right side of causal ones is 0 whatever is given. Of more
    queries than keys those above the diagonal see what the window's right side reaches. One slice
    for each document. ValueError for bounds that fall or do not begin at 0.
    """
    left, right = check_window(window_size)
    right = 0 if as_bool("causal", causal) else right
    q = _to_bounds("cu_seqlens_q", cu_seqlens_q)
    k = q if cu_seqlens_k is None else _to_bounds("cu_seqlens_k", cu_seqlens_k)
    return Mask(MaskHandle.from_documents(q, k, (left, right)))


def to_cu_seqlens(
    mask: Mask, *, causal: bool = True, window_size: tuple[int, int] = (-1, -1)
) -> torch.Tensor:
    """The inverse for as many keys as queries: int32 [documents + 1], without empty documents.
    ValueError that names the first row which is in no such document.
    """
    rows = check_square(mask, "cu_seqlens")
    left, right = check_window(window_size)
    starts = _document_starts(mask, (left, 0 if causal else right)).nonzero().view(-1)
    found = torch.nn.functional.pad(starts, (0, 1), value=rows).int()
    check_told(mask, from_cu_seqlens(found, causal=causal, window_size=window_size), "cu_seqlens")
    return found


def _document_starts(mask: Mask, window: tuple[int, int]) -> torch.Tensor:
    """bool [rows]: the first rows of documents under that window, if the mask holds such."""
    rows, (left, right) = mask.rows_q, window
    begins = _first_keys(mask, "cu_seqlens")
    if not rows:
        return begins.bool()
    row = torch.arange(rows, device="cpu")
    if left == 0 and right != 0:
        # Every row begins with itself; the last of a document also ends there.
        starts = (padded_runs(mask, rows)[:, 0, 1] == row + 1).roll(1)
    elif left >= 0 or right == 0:
        starts = begins == row  # the first row of a document sees none before it
    else:
        starts = torch.nn.functional.pad(begins.diff() != 0, (1, 0))  # all rows see the first
    starts[0] = True
    return starts


def _first_keys(mask: Mask, form: str) -> torch.Tensor:
    """int64 [rows_q]: the first key of each row. ValueError for the first row without keys."""
    runs = padded_runs(mask, mask.rows_k)
    if runs.shape[1] == 0:
        runs = torch.full((mask.rows_q, 1, 2), mask.rows_k, device="cpu")
    begins = runs[:, 0, 0]
    empty = (begins == mask.rows_k).nonzero()
    if len(empty):
        raise ValueError(
            f"row {int(empty[0])} sees no key, which {form} cannot tell; allowed: masks whose rows "
            "all see keys"
        )
    return begins


def from_document_ids(
    document_ids: Bounds, *, causal: bool = True, padding_id: int | None = None
) -> Mask:
    """Rows see the rows of the same id, causal: up to themselves. Rows of one id need not lie
    together; an id in p parts takes p * p slices, causal: p * (p + 1) / 2, before those of parts of
    one row are joined along diagonals. ValueError where these are more than 2^24 in all. Rows with
    padding_id see nothing and are seen by none.
    """
    ids = to_ints("document_ids", document_ids, 1)
    causal = as_bool("causal", causal)
    if padding_id is not None:
        check_int("padding_id", padding_id, -1 << 31, (1 << 31) - 1)
    kinds, counts = torch.unique_consecutive(ids, return_counts=True)
    bounds = _sum_of(counts)
    has_padding = padding_id is not None and bool((kinds == padding_id).any())
    if not has_padding and len(kinds) == len(torch.unique(kinds)):
        return from_cu_seqlens(bounds, causal=causal)
    lie_in = torch.stack((bounds[:-1], bounds[1:]), 1)
    if has_padding:
        lie_in, kinds = lie_in[kinds != padding_id], kinds[kinds != padding_id]
    seen_by, seen = _pairs_of_parts(kinds, causal)
    queries, keys = lie_in[seen_by], lie_in[seen]
    low = torch.full_like(queries[:, :1], -_INFINITY)
    high = torch.full_like(low, _INFINITY)
    if causal:
        high[seen_by == seen] = 0
    mask = Mask(MaskHandle.from_bands(torch.cat((queries, keys, low, high), 1), len(ids), len(ids)))
    # Only parts of one row are joined: not worth going through all runs of long ones.
    num_runs = int((queries[:, 1] - queries[:, 0]).sum())
    return compact(mask) if num_runs <= _MAX_SLICES else mask


def _pairs_of_parts(kinds: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [pairs] each: the parts, by their places in kinds, that see one another; causal: the
    ones before themselves and themselves. ValueError for more than _MAX_SLICES.
    """
    order = torch.argsort(kinds, stable=True)
    part = torch.arange(len(kinds), device="cpu")
    place = torch.empty_like(order)
    place[order] = part
    numbers = torch.unique_consecutive(kinds[order], return_counts=True)[1]
    first = torch.repeat_interleave(numbers.cumsum(0) - numbers, numbers)[place]
    counts = place - first + 1 if causal else torch.repeat_interleave(numbers, numbers)[place]
    total = int(counts.sum())
    if total > _MAX_SLICES:
        raise ValueError(
            f"document_ids has ids in so many parts that they take {total} slices; allowed: at "
            f"most {_MAX_SLICES}"
        )
    seen_by = torch.repeat_interleave(part, counts)
    skipped = first - (counts.cumsum(0) - counts)
    return seen_by, order[torch.arange(total, device="cpu") + skipped[seen_by]]


_INFINITY = 1 << 30
_MAX_SLICES = 1 << 24  # 400 MB of them


def to_document_ids(mask: Mask, *, causal: bool = True) -> torch.Tensor:
    """The inverse, int32 [rows]: the row of a document's first key is its id, and -1 that of rows
    without keys. ValueError that names the first row which is in no document.
    """
    rows = check_square(mask, "document ids")
    runs = padded_runs(mask, -1)
    ids = (
        runs[:, 0, 0].int()
        if runs.shape[1]
        else torch.full((rows,), -1, dtype=torch.int32, device="cpu")
    )
    check_told(mask, from_document_ids(ids, causal=causal, padding_id=-1), "document ids")
    return ids


def from_window(rows: int, left: int, right: int) -> Mask:
    """One sequence whose rows see `left` rows before and `right` behind themselves; -1: all."""
    rows = check_int("rows", rows, 0, MAX_ROWS)
    with naming(**{"window_size[0]": "left", "window_size[1]": "right"}):
        window = check_window((left, right))
    return Mask(MaskHandle.from_window((0, rows), (0, rows), window))


def to_window(mask: Mask) -> tuple[int, int]:
    """The inverse: the smallest (left, right). ValueError that names the first row that no window
    tells.
    """
    rows = check_square(mask, "a window")
    left, right = mask.handle.reach()
    check_told(mask, from_window(rows, left, right), "a window")
    return left, right


def from_prefix_lm(cu_seqlens: Bounds, prefix_lengths: Bounds) -> Mask:
    """Packed documents, of which all rows see the first prefix_lengths[i] rows of document i (all
    of a shorter document), and the rows up to themselves. ValueError for bounds that fall and
    lengths below 0.
    """
    bounds = _to_bounds("cu_seqlens", cu_seqlens)
    prefixes = to_ints("prefix_lengths", prefix_lengths, 1)
    if len(prefixes) != len(bounds) - 1:
        raise ValueError(
            f"prefix_lengths has {len(prefixes)} entries; allowed: {len(bounds) - 1}, one for each "
            "document"
        )
    return Mask(MaskHandle.from_prefix_lm(bounds, prefixes))


def to_prefix_lm(mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse: cu_seqlens and prefix_lengths, 0 for a causal document. ValueError that names
    the first row which is in no such document.
    """
    rows = check_square(mask, "a prefix-LM")
    begins = _first_keys(mask, "a prefix-LM")
    is_first = torch.nn.functional.pad(begins.diff() != 0, (1, 0), value=True)[:rows]
    starts = is_first.nonzero().view(-1)
    bounds = torch.nn.functional.pad(starts, (0, 1), value=rows).int()
    if not rows:
        bounds = bounds[:0].new_zeros(1)
    seen = padded_runs(mask, mask.rows_k)[starts, 0, 1] if rows else starts
    prefixes = torch.where(seen - starts > 1, seen - starts, 0).int()
    check_told(mask, from_prefix_lm(bounds, prefixes), "a prefix-LM")
    return bounds, prefixes


def from_packed_seq_params(params: Any, *, causal: bool = True) -> Mask:
    """From an object with the fields of Megatron's PackedSeqParams: cu_seqlens_q, cu_seqlens_kv,
    and cu_seqlens_q_padded, cu_seqlens_kv_padded where documents are padded in place, whose padding
    sees nothing and is seen by none. ValueError for bounds that fall or do not begin at 0, for more
    documents on one side than on the other, and where a document is longer than its place.
    """
    if not hasattr(params, "cu_seqlens_q"):
        raise TypeError(f"params is a {type(params).__name__}; allowed: PackedSeqParams")
    sides, causal = [], as_bool("causal", causal)
    for name in ("cu_seqlens_q", "cu_seqlens_kv"):
        bounds = _checked_bounds(name, getattr(params, name))
        padded = getattr(params, name + "_padded", None)
        padded = bounds if padded is None else _checked_bounds(name + "_padded", padded)
        if len(padded) != len(bounds):
            raise ValueError(
                f"{name}_padded has {len(padded)} entries; allowed: {len(bounds)}, as {name}"
            )
        begins, ends = padded[:-1], padded[:-1] + bounds.diff()
        too_long = (ends > padded[1:]).nonzero()
        if len(too_long):
            raise ValueError(
                f"{name} gives document {int(too_long[0])} more rows than {name}_padded; allowed: "
                "at most as many"
            )
        sides.append((begins, ends, int(padded[-1])))
    (q0, q1, rows_q), (k0, k1, rows_k) = sides
    if len(k0) != len(q0):
        raise ValueError(
            f"cu_seqlens_kv has {len(k0) + 1} entries; allowed: {len(q0) + 1}, as cu_seqlens_q"
        )
    low = torch.full_like(q0, -_INFINITY)
    high = k1 - q1 if causal else torch.full_like(q0, _INFINITY)
    bands = torch.stack((q0, q1, k0, k1, low, high), 1)[(q0 < q1) & (k0 < k1)].contiguous()
    return Mask(MaskHandle.from_bands(bands, rows_q, rows_k))


def _checked_bounds(name: str, value: Bounds) -> torch.Tensor:
    """int32 [documents + 1]; ValueError, by name, for what from_cu_seqlens refuses."""
    bounds = _to_bounds(name, value)
    with naming(cu_seqlens_q=name):
        MaskHandle.from_documents(bounds, bounds, (-1, -1))
    return bounds


def to_packed_seq_params(mask: Mask, *, causal: bool = True) -> dict[str, Any]:
    """The inverse for as many keys as queries, as keywords of PackedSeqParams: qkv_format "thd",
    cu_seqlens_q and cu_seqlens_kv, those _padded too, and max_seqlen_q and max_seqlen_kv. Rows
    without keys pad the document before them. ValueError that names the first row which is in none.
    """
    rows = check_square(mask, "packed sequences")
    ids = to_document_ids(mask, causal=causal)
    kinds, counts = torch.unique_consecutive(ids, return_counts=True)
    bounds, real = _sum_of(counts), kinds >= 0
    lengths, places = counts[real], bounds[:-1][real].clone()
    if len(places):
        places[0] = 0
    padded = torch.nn.functional.pad(places, (0, 1), value=rows).int()
    bounds = _sum_of(lengths)
    longest = int(lengths.max()) if len(lengths) else 0
    found: dict[str, Any] = {"qkv_format": "thd", "max_seqlen_q": longest, "max_seqlen_kv": longest}
    for side in ("q", "kv"):
        found[f"cu_seqlens_{side}"], found[f"cu_seqlens_{side}_padded"] = bounds, padded
    check_told(mask, from_packed_seq_params(_Fields(found), causal=causal), "packed sequences")
    return found


class _Fields:
    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
