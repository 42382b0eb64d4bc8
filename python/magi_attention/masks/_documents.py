# SPDX-License-Identifier: Apache-2.0
"""Masks of packed documents: bounds, ids of documents, windows, prefixes, Megatron's parameters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from magi_attention._native.handles import MaskHandle
from magi_attention.common._arguments import (
    MAX_ROWS,
    as_bool,
    check_int,
    check_window,
    naming,
    trying,
    without_padding,
)
from magi_attention.masks._mask import Mask, check_form, check_square, padded_runs, to_ints

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
    is_causal = (left, right) == (-1, 0)
    if is_causal:
        right = -1
    rule = {"is_causal": is_causal, "window_left": left, "window_right": right}
    with trying("[0, *itertools.accumulate(lengths)]", "cu_seqlens"):
        q = _to_bounds("cu_seqlens_q", cu_seqlens_q)
        k = q if cu_seqlens_k is None else _to_bounds("cu_seqlens_k", cu_seqlens_k)
        return Mask(MaskHandle.from_cu_seqlens(q, k, **rule, has_rows_above=True))


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
    check_form(mask, from_cu_seqlens(found, causal=causal, window_size=window_size), "cu_seqlens")
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
    fields = {"document_ids": ids, "causal": causal, "padding_id": padding_id}
    return Mask(MaskHandle.from_form("document_ids", **fields))


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
    check_form(mask, from_document_ids(ids, causal=causal, padding_id=-1), "document ids")
    return ids


def from_window(rows: int, left: int, right: int) -> Mask:
    """One sequence whose rows see `left` rows before and `right` after themselves; -1: all."""
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
    check_form(mask, from_window(rows, left, right), "a window")
    return left, right


def from_prefix_lm(cu_seqlens: Bounds, prefix_lengths: Bounds) -> Mask:
    """Packed documents, of which all rows see the first prefix_lengths[i] rows of document i (all
    of a shorter document), and the rows up to themselves. ValueError for bounds that fall and
    lengths below 0.
    """
    bounds = _to_bounds("cu_seqlens", cu_seqlens)
    prefixes = to_ints("prefix_lengths", prefix_lengths, 1)
    fields = {"cu_seqlens": bounds, "prefix_lengths": prefixes}
    return Mask(MaskHandle.from_form("prefix_lm", **fields))


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
    check_form(mask, from_prefix_lm(bounds, prefixes), "a prefix-LM")
    return bounds, prefixes


def from_packed_seq_params(params: Any, *, causal: bool = True) -> Mask:
    """Makes a mask of an object with the fields of Megatron's PackedSeqParams: cu_seqlens_q,
    cu_seqlens_kv, and cu_seqlens_q_padded, cu_seqlens_kv_padded where documents are padded in
    place, whose padding sees nothing and is seen by none. ValueError for bounds that fall or do not
    begin at 0, for more documents on one side than on the other, and where a document is longer
    than its place.
    """
    if not hasattr(params, "cu_seqlens_q"):
        raise TypeError(f"params is a {type(params).__name__}; allowed: PackedSeqParams")
    fields: dict[str, Any] = {"causal": as_bool("causal", causal)}
    for name in ("cu_seqlens_q", "cu_seqlens_kv"):
        fields[name] = _to_bounds(name, getattr(params, name))
        padded = getattr(params, name + "_padded", None)
        fields[name + "_padded"] = None if padded is None else _to_bounds(name + "_padded", padded)
    return Mask(MaskHandle.from_form("packed_seq_params", **fields))


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
    check_form(
        mask, from_packed_seq_params(SimpleNamespace(**found), causal=causal), "packed sequences"
    )
    return found
