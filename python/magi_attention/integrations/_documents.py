# SPDX-License-Identifier: Apache-2.0
"""Where documents end in a sequence, by whatever a sample or a batch says it with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from magi_attention._native.tensors import as_tensor
from magi_attention.common._arguments import without_padding

# Bounds [documents + 1] and lengths [documents]. One with "_padded" after it holds the padding of
# documents too, and goes before the other.
_BOUNDS = (
    "cu_seqlens", "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_k", "cu_seq_lens_q", "cu_seq_lens_k",
)  # fmt: skip
_LENGTHS = ("seq_lens", "seq_lengths")
_NUMBERS = ("seq_idx", "document_ids")  # of every row its document, below 0: padding
# What only repeats a part of the others.
IMPLIED = (
    "max_seqlen", "max_seqlen_q", "max_seqlen_kv", "max_seqlen_k", "max_length_q", "max_length_k",
    "cu_seqlens_argmin",
)  # fmt: skip
SIZES = tuple(name for stem in (*_BOUNDS, *_LENGTHS) for name in (f"{stem}_padded", stem))
DESCRIBING = (*SIZES, *_NUMBERS, *IMPLIED)
# What tells which tokens are learned, as TRL and chat templates do.
LEARNED = ("completion_mask", "assistant_masks")
# Rows that are counted from the end of what a rank holds.
FROM_THE_END = ("logits_to_keep", "num_logits_to_keep")


def document_numbers(name: str, mask: Any) -> torch.Tensor:
    """int64, on the CPU: a mask of rows, as the number of each row's document, -1 where it is 0,
    which is padding. ValueError, by name, for values that are no numbers of documents.
    """
    given = as_tensor(mask).cpu()
    numbers = given.to(torch.int64)
    wrong = ((numbers != given) | (numbers < 0)).reshape(-1).nonzero()
    if len(wrong):
        raise ValueError(
            f"{name} holds {given.reshape(-1)[int(wrong[0])].item()}; allowed: 1 for rows that are "
            "real, or the number of their document, and 0 for padding"
        )
    return numbers - 1


def borders_of(name: str, numbers: torch.Tensor) -> torch.Tensor:
    """bool [rows - 1]: after which rows another document begins, by their numbers. ValueError, by
    name, for one that has rows in two places.
    """
    found = numbers.diff() != 0
    if len(torch.unique(numbers)) != len(numbers[:1]) + int(found.sum()):
        raise ValueError(f"{name} has a document in two places; allowed: each in one")
    return found


def lengths_between(borders: torch.Tensor, rows: int) -> list[int]:
    """Rows of every document of `rows` by borders_of."""
    ends = (borders.nonzero().view(-1) + 1).tolist()
    if rows:
        ends.append(rows)
    return [end - begin for begin, end in zip([0, *ends], ends)]


def lengths_of(name: str, given: Any, rows: int) -> list[int]:
    """Rows of every document by bounds or lengths, which entries below 0 pad. ValueError, by name,
    where they do not add up to rows.
    """
    lengths = _document_lengths(name, given)
    if int(lengths.sum()) != rows:
        raise ValueError(
            f"{name} has documents of {int(lengths.sum())} rows; allowed: {rows}, those of "
            "input_ids"
        )
    return lengths.tolist()


def _document_lengths(name: str, given: Any) -> torch.Tensor:
    """int64 [documents]. ValueError for bounds that do not grow from 0."""
    values = as_tensor(given).reshape(-1).cpu().to(torch.int64)
    if not name.startswith("cu_"):
        return values[values >= 0]
    bounds = without_padding(values)
    lengths = bounds.diff()
    if len(bounds) == 0 or bounds[0] != 0 or (lengths < 0).any():
        raise ValueError(f"{name} is {bounds.tolist()}; allowed: bounds that grow from 0")
    return lengths


def find_documents(
    given: Mapping[str, Any], rows: int, keeps_padding: bool = True
) -> tuple[torch.Tensor, list[int]]:
    """Places of real rows, int64 on the CPU, and how many of these are in each document, one after
    the other: by bounds, lengths and numbers of documents, an attention_mask that numbers them, and
    position_ids, which go on by one in a document. keeps_padding: that within the sizes of
    documents is real. ValueError, by name, where two of them differ, and for rows hidden inside of
    a document.
    """
    stated = dict(_numbers_by_name(given, rows, keeps_padding))
    real = torch.ones(rows, dtype=torch.bool, device="cpu")
    for numbers in stated.values():
        real &= numbers >= 0
    places = real.nonzero().view(-1)
    borders, by = None, ""
    for name, numbers in stated.items():
        numbers = numbers[places]
        if name == "attention_mask" and not (numbers > 0).any():
            continue  # which says what is real, and no more
        found = borders_of(name, numbers)
        if borders is not None and not torch.equal(found, borders):
            _refuse_other_borders(name, by, places, found != borders)
        borders, by = found, name
    borders = _with_positions(given.get("position_ids"), places, rows, borders, by)
    if ((places.diff() != 1) & ~borders).any():
        raise ValueError(
            "attention_mask hides rows between others; allowed: padding before or behind a document"
        )
    return places, lengths_between(borders, len(places))


def _with_positions(positions, places: torch.Tensor, rows: int, borders, by: str) -> torch.Tensor:
    """The borders, which position ids tell where nothing else does."""
    if positions is None:
        none = torch.zeros(max(0, len(places) - 1), dtype=torch.bool, device="cpu")
        return none if borders is None else borders
    steps = _values_of_rows("position_ids", positions, rows)[places].diff()
    if borders is not None:
        if ((steps != 1) & ~borders).any():
            _refuse_other_borders("position_ids", by, places, (steps != 1) & ~borders)
        return borders
    if (steps > 1).any():
        row = int(places[int((steps > 1).nonzero()[0]) + 1])
        raise ValueError(
            f"position_ids leave out numbers before row {row}; allowed: those that go on by one in "
            "a document, or the sizes of documents (seq_lengths) beside them"
        )
    return steps <= 0


def _refuse_other_borders(
    name: str, other: str, places: torch.Tensor, differ: torch.Tensor
) -> None:
    row = int(places[int(differ.nonzero()[0]) + 1])
    raise ValueError(
        f"{name} and {other} differ in whether a document begins at row {row}; allowed: the same "
        "documents"
    )


def _numbers_by_name(
    given: Mapping[str, Any], rows: int, keeps_padding: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Returns by the name of what says it, for each row, the number of its document, below 0 for
    padding.
    """
    if given.get("attention_mask") is not None:
        numbers = document_numbers("attention_mask", given["attention_mask"])
        yield "attention_mask", _values_of_rows("attention_mask", numbers, rows)
    for name in _NUMBERS:
        if given.get(name) is not None:
            yield name, _values_of_rows(name, given[name], rows)
    for stem in (*_BOUNDS, *_LENGTHS):
        padded = f"{stem}_padded"
        name = stem if given.get(padded) is None else padded
        if given.get(name) is None:
            continue
        lengths = torch.tensor(lengths_of(name, given[name], rows), dtype=torch.int64, device="cpu")
        numbers = torch.repeat_interleave(torch.arange(len(lengths), device="cpu"), lengths)
        if name == padded and given.get(stem) is not None and not keeps_padding:
            real = _real_lengths(stem, given[stem], lengths)
            begins = lengths.cumsum(0) - lengths
            place = torch.arange(rows, device="cpu") - begins[numbers]
            numbers = torch.where(place < real[numbers], numbers, -1)
        yield name, numbers


def _real_lengths(name: str, given: Any, padded: torch.Tensor) -> torch.Tensor:
    lengths = _document_lengths(name, given)
    if len(lengths) != len(padded) or (lengths > padded).any():
        raise ValueError(
            f"{name} has documents of {lengths.tolist()} rows; allowed: as many as {name}_padded "
            f"has, of at most {padded.tolist()}"
        )
    return lengths


def _values_of_rows(name: str, given: Any, rows: int) -> torch.Tensor:
    values = as_tensor(given).cpu()
    if values.numel() != rows or values.dim() > 2:
        raise ValueError(
            f"{name} has shape {list(values.shape)}; allowed: [{rows}], that of input_ids"
        )
    return values.reshape(-1).to(torch.int64)


def refuse_hidden_rows(batch: Mapping[str, Any], allows_documents: bool = False) -> None:
    """ValueError for an attention_mask that hides rows, that is more than rows, or that numbers
    documents, where these are not asked for.
    """
    mask = batch.get("attention_mask")
    if mask is None:
        return
    if mask.dim() > 2:
        raise ValueError(
            f"attention_mask has shape {list(mask.shape)}; allowed: None, as the plan is the mask"
        )
    numbers = document_numbers("attention_mask", mask)
    hidden = int((numbers < 0).sum())
    if hidden:
        raise ValueError(
            f"attention_mask hides {hidden} rows; allowed: sequences without padding, packed one "
            "after the other"
        )
    if not allows_documents and (numbers > 0).any():
        raise ValueError("attention_mask numbers documents; allowed: None, as the plan is the mask")


def documents_in(batch: Mapping[str, Any]) -> list[int]:
    """Rows of every document of a batch, input_ids [rows] or [batch, rows], whose sequences are
    documents at least. Errors as find_documents, and for hidden rows.
    """
    refuse_hidden_rows(batch, allows_documents=True)
    ids = batch["input_ids"]
    if ids.dim() < 2 or len(ids) == 1 or any(batch.get(name) is not None for name in SIZES):
        return find_documents(batch, ids.numel())[1]
    names = ("attention_mask", "position_ids", *_NUMBERS)
    given = {n: batch[n].reshape(ids.shape) for n in names if batch.get(n) is not None}
    of_each = ({name: value[i] for name, value in given.items()} for i in range(len(ids)))
    return [n for one in of_each for n in find_documents(one, ids.shape[1])[1]]
