# SPDX-License-Identifier: Apache-2.0
"""Masks in files of JSON, which the library reads: as slices, or in the form of another program."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from magi_attention._native.handles import MaskHandle
from magi_attention.common._arguments import check_kind
from magi_attention.masks._dense import to_block_mask, to_matrix
from magi_attention.masks._documents import (
    to_cu_seqlens,
    to_document_ids,
    to_packed_seq_params,
    to_prefix_lm,
    to_window,
)
from magi_attention.masks._intervals import to_flashmask, to_interval_ends
from magi_attention.masks._mask import Mask, compact
from magi_attention.masks._tree import to_tree

Fields = dict[str, Any]


def load(path: str | os.PathLike[str]) -> Mask:
    """The mask of a file of JSON: slices, as save writes them, or a "form" with the arguments of
    the function from_X of that name (docs/masks.md). ValueError with the file and the key for what
    is wrong, and, by row and key, where two slices show the same pair; OSError without the file.
    """
    text = Path(path).read_bytes()
    try:
        return compact(Mask(MaskHandle.from_json(text)))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def save(mask: Mask, path: str | os.PathLike[str], form: str = "slices", **options: Any) -> None:
    """Writes the mask to a file that load and the command `magi` read: as slices, or as the form X
    by the function to_X, which gets the options (causal, window_size, num_bounds, num_ends,
    block_size). ValueError, before anything is written, for another form, and that names the first
    row which the form cannot tell.
    """
    check_kind("mask", mask, Mask, "a Mask")
    if form == "slices":
        if options:
            raise ValueError(f"options are {sorted(options)}; allowed with form 'slices': none")
        text = mask.handle.to_json()
    elif form in _WRITERS:
        fields = {"form": form, **_WRITERS[form](mask, **options)}
        values = (json.dumps(value, default=torch.Tensor.tolist) for value in fields.values())
        members = (f"{json.dumps(key)}: {value}" for key, value in zip(fields, values))
        text = "{" + ",\n ".join(members) + "}\n"
    else:
        raise ValueError(f"form is {form!r}; allowed: slices, {', '.join(_WRITERS)}")
    Path(path).write_text(text, encoding="ascii")


def _cu_seqlens(
    mask: Mask, *, causal: bool = True, window_size: tuple[int, int] = (-1, -1)
) -> Fields:
    bounds = to_cu_seqlens(mask, causal=causal, window_size=window_size)
    return {"cu_seqlens_q": bounds, "causal": causal, "window_size": list(window_size)}


def _document_ids(mask: Mask, *, causal: bool = True) -> Fields:
    ids = to_document_ids(mask, causal=causal)
    return {"document_ids": ids, "causal": causal, "padding_id": -1}


def _window(mask: Mask) -> Fields:
    left, right = to_window(mask)
    return {"rows": mask.rows_q, "left": left, "right": right}


def _prefix_lm(mask: Mask) -> Fields:
    return dict(zip(("cu_seqlens", "prefix_lengths"), to_prefix_lm(mask)))


def _tree(mask: Mask) -> Fields:
    return dict(zip(("parents", "lengths"), to_tree(mask)))


def _flashmask(mask: Mask, *, causal: bool = True, num_bounds: int | None = None) -> Fields:
    found = to_flashmask(mask, causal=causal, num_bounds=num_bounds)[0, 0]
    return {"startend_row_indices": found, "causal": causal, "rows_q": mask.rows_q}


def _interval_ends(mask: Mask, *, num_ends: int | None = None) -> Fields:
    return {"ends": to_interval_ends(mask, num_ends), "rows_k": mask.rows_k}


def _intervals(mask: Mask) -> Fields:
    offsets, runs = mask.runs
    return {"offsets": offsets, "intervals": runs, "rows_k": mask.rows_k}


def _block_mask(mask: Mask, *, block_size: int = 128) -> Fields:
    found = to_block_mask(mask, block_size, "cpu")
    fields: Fields = {
        "rows_q": mask.rows_q, "rows_k": mask.rows_k, "block_size": [block_size, block_size],
    }  # fmt: skip
    for prefix in ("", "full_"):
        counts = getattr(found, prefix + "kv_num_blocks")[0, 0].tolist()
        indices = getattr(found, prefix + "kv_indices")[0, 0].tolist()
        fields[prefix + "kv_indices"] = [row[:n] for row, n in zip(indices, counts)]
    return {**fields, **{key: _intervals(mask)[key] for key in ("offsets", "intervals")}}


def _matrix(mask: Mask) -> Fields:
    if not mask.rows_q and mask.rows_k:
        raise ValueError(
            f"mask has {mask.rows_k} keys and no query, which a matrix without rows cannot tell; "
            "allowed: masks with queries"
        )
    return {"visible": to_matrix(mask).int()}


def _packed_seq_params(mask: Mask, *, causal: bool = True) -> Fields:
    found = to_packed_seq_params(mask, causal=causal)
    return {key: found[key] for key in found if key.startswith("cu_seqlens")} | {"causal": causal}


# By the name of the form.
_WRITERS: dict[str, Callable[..., Fields]] = {
    write.__name__.removeprefix("_"): write
    for write in (
        _block_mask, _cu_seqlens, _document_ids, _flashmask, _interval_ends, _intervals, _matrix,
        _packed_seq_params, _prefix_lm, _tree, _window,
    )
}  # fmt: skip
