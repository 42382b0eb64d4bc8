# SPDX-License-Identifier: Apache-2.0
"""A mask as a set of pairs of queries and keys, for sequences of any length."""

from __future__ import annotations

import itertools
import weakref
from functools import cached_property
from typing import Any

import torch

from magi_attention._native.handles import MaskHandle
from magi_attention._native.tensors import as_plain, as_tensor
from magi_attention.common._arguments import MAX_ROWS, check_int, check_kind
from magi_attention.common._slices import (
    MaskTypes,
    check_equally_many,
    check_inside,
    to_mask_types,
    typed_ranges,
)
from magi_attention.common.enum import AttnMaskType
from magi_attention.common.ranges import AttnRanges


class Mask:
    """Which of rows_k keys each of rows_q queries sees. Immutable; equal where the pairs are,
    whatever slices hold them. Made by the functions of magi_attention.masks.
    """

    # A compiler takes `name` for a constant, which no release of torch does for the mask.
    by_name: weakref.WeakValueDictionary[str, Mask] = weakref.WeakValueDictionary()
    _numbers = itertools.count()

    def __init__(self, handle: MaskHandle) -> None:
        check_kind("handle", handle, MaskHandle, "what functions of magi_attention.masks make")
        self._handle = handle
        self._rows = handle.rows()
        self.name = f"mask {next(Mask._numbers)}"  # in this process
        Mask.by_name[self.name] = self
        self._runs: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def handle(self) -> MaskHandle:
        """The library's mask."""
        return self._handle

    @property
    def rows_q(self) -> int:
        """Number of queries."""
        return self._rows[0]

    @property
    def rows_k(self) -> int:
        """Number of keys."""
        return self._rows[1]

    @property
    def slices(self) -> torch.Tensor:
        """int32 [slices, 6]: query i of [q0, q1) sees key j of [k0, k1) where d_min <= j - i <=
        d_max; bounds of +-2^30 are none. No pair is in two of them.
        """
        return self._handle.bands()

    @property
    def area(self) -> int:
        """Number of pairs."""
        return self._handle.area()

    @property
    def runs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """offsets int64 [rows_q + 1] and runs int32 [n, 2]: row i sees the keys [begin, end) of
        runs[offsets[i]:offsets[i + 1]], in ascending order, with hidden keys between them.
        """
        if self._runs is None:
            offsets, runs = self._handle.runs()
            self._runs = _tensor(offsets, torch.int64), _tensor(runs, torch.int32).view(-1, 2)
        return self._runs

    def transposed(self) -> Mask:
        """Queries and keys in each other's place."""
        return Mask(self._handle.transposed())

    def tensors(self, device: Any = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q_ranges and k_ranges [n, 2] and attn_type_map [n], int32, as flex_flash_attn_func takes
        them, on `device`, torch's default if None.
        """
        device = torch.get_default_device() if device is None else device
        q, k, types = (tensor.to(device, copy=True) for tensor in self.host_tensors)
        return q, k, types

    @cached_property
    def host_tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`tensors` in host memory, made once; not to be written to."""
        slices = torch.tensor(self._handle.typed_slices(), dtype=torch.int32, device="cpu")
        q, k, types = slices.view(-1, 5).split((2, 2, 1), 1)
        return q.contiguous(), k.contiguous(), types.reshape(-1).clone()

    def ranges(self) -> tuple[AttnRanges, AttnRanges, list[AttnMaskType]]:
        """q_ranges, k_ranges and types as keys and plans take them: a slice with two bounds becomes
        up to three.
        """
        return typed_ranges(self._handle)

    def draw(
        self,
        title: str = "",
        rows: tuple[int, int] | None = None,
        keys: tuple[int, int] | None = None,
    ) -> str:
        """Returns an SVG picture; of the rows [begin, end) alone with the keys that they see, or of
        `keys`. ValueError for what is no part of the mask.
        """
        return self._handle.draw(title, _ends("rows", rows), _ends("keys", keys))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        return self.rows_k == other.rows_k and first_difference(self, other) is None

    def __hash__(self) -> int:
        return hash((*self._rows, self.area))

    def __reduce__(self):
        return (_of_bands, (self.slices, *self._rows))

    def __repr__(self) -> str:
        rows_q, rows_k = self._rows
        return f"Mask(rows_q={rows_q}, rows_k={rows_k}, slices={len(self.slices)})"


def _ends(name: str, part: tuple[int, int] | None) -> tuple[int, int] | None:
    if part is None:
        return None
    check_kind(name, part, (tuple, list), "(begin, end) or None")
    if len(part) != 2:
        raise ValueError(f"{name} is {part!r}; allowed: (begin, end)")
    return tuple(check_int(f"{name}[{i}]", end, 0, MAX_ROWS) for i, end in enumerate(part))


def _of_bands(bands: torch.Tensor, rows_q: int, rows_k: int) -> Mask:
    return Mask(MaskHandle.from_bands(bands, rows_q, rows_k))


def _tensor(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    if not data:
        return torch.empty(0, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=dtype)


def from_ranges(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: MaskTypes,
    total_seqlen_q: int,
    total_seqlen_k: int,
) -> Mask:
    """Makes a mask of the slices of keys and plans. ValueError for ranges outside the rows, and, by
    row and key, where two slices show the same pair.
    """
    for name, ranges, rows in (
        ("q_ranges", q_ranges, check_int("total_seqlen_q", total_seqlen_q, 0, MAX_ROWS)),
        ("k_ranges", k_ranges, check_int("total_seqlen_k", total_seqlen_k, 0, MAX_ROWS)),
    ):
        check_kind(name, ranges, AttnRanges, "AttnRanges")
        check_inside(name, ranges, rows)
    check_equally_many(q_ranges, k_ranges)
    types = [t.to_int_type() for t in to_mask_types(attn_mask_type, len(q_ranges))]
    sides = q_ranges.to_naive_ranges(), k_ranges.to_naive_ranges()
    return compact(Mask(MaskHandle.from_ranges(*sides, types, total_seqlen_q, total_seqlen_k)))


def compact(mask: Mask) -> Mask:
    """The same pairs in the slices to which they come row by row."""
    offsets, runs = mask.runs
    return Mask(MaskHandle.from_runs(offsets, runs, mask.rows_k))


def from_intervals(offsets: torch.Tensor, intervals: torch.Tensor, rows_k: int) -> Mask:
    """Makes a mask of the keys of each row: row i sees the union of
    intervals[offsets[i]:offsets[i + 1]], pairs [begin, end) of keys in any order;
    offsets [rows_q + 1], intervals [n, 2]. Mask.runs is the inverse. ValueError, by row, for
    intervals that are reversed or leave the keys.
    """
    offsets = to_ints("offsets", offsets, 1).long()
    intervals = to_ints("intervals", intervals, 2).contiguous()
    if intervals.shape[1] != 2:
        raise ValueError(f"intervals has shape {list(intervals.shape)}; allowed: [n, 2]")
    rows_k = check_int("rows_k", rows_k, 0, MAX_ROWS)
    return Mask(MaskHandle.from_runs(offsets.contiguous(), intervals, rows_k))


def to_ints(name: str, value: Any, num_axes: int) -> torch.Tensor:
    """value as an int32 tensor in host memory with that many axes; TypeError and ValueError else,
    also for values beyond int32.
    """
    tensor = as_plain(name, as_integers(name, value)).to("cpu")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        if tensor.numel():
            raise TypeError(f"{name} holds {tensor.dtype}; allowed: integers")
    if tensor.dim() != num_axes:
        raise ValueError(f"{name} has {tensor.dim()} axes; allowed: {num_axes}")
    found = tensor.to(torch.int32)
    # Of uint64 what is near 2^64 is a small negative int64, which int32 holds.
    wide = tensor.to(torch.int64)
    wrapped = wide != found
    if tensor.dtype == torch.uint64:
        wrapped |= wide < 0
    if bool(wrapped.any()):
        first = tensor[tuple(wrapped.nonzero()[0].tolist())].item()
        raise ValueError(_beyond_int32(name, first))
    return found.contiguous()


def as_integers(name: str, value: Any) -> torch.Tensor:
    """as_tensor; ValueError with the value for an int that no tensor holds."""
    try:
        return as_tensor(value)
    except (OverflowError, RuntimeError, ValueError):
        for entry in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(entry, (list, tuple)):
                as_integers(name, entry)
            elif isinstance(entry, int) and not -(1 << 63) <= entry < 1 << 63:
                raise ValueError(_beyond_int32(name, entry)) from None
        raise


def _beyond_int32(name: str, value: int) -> str:
    return f"{name} holds {value}, which is beyond int32; allowed: -2^31 to 2^31 - 1"


def check_mask(mask: Mask) -> None:
    """TypeError for what is no Mask."""
    check_kind("mask", mask, Mask, "a Mask of magi_attention.masks")


def first_difference(one: Mask, other: Mask) -> int | None:
    """The first row whose keys differ; None where both show the same."""
    if one.rows_q != other.rows_q:
        return min(one.rows_q, other.rows_q)
    (offsets, runs), (offsets_, runs_) = one.runs, other.runs
    if torch.equal(offsets, offsets_) and torch.equal(runs, runs_):
        return None
    common = min(len(runs), len(runs_))
    differs = (runs[:common] != runs_[:common]).any(1).nonzero()
    run = int(differs[0]) if len(differs) else common
    rows = [int(torch.searchsorted(o, run, right=True)) - 1 for o in (offsets, offsets_)]
    by_count = (offsets != offsets_).nonzero()
    if len(by_count):
        rows.append(int(by_count[0]) - 1)
    return min(rows)


def keys_in_words(mask: Mask, row: int) -> str:
    """Says what a row sees, for messages."""
    offsets, runs = mask.runs
    shown = runs[int(offsets[row]) : int(offsets[row + 1])].tolist()
    if not shown:
        return "no key"
    text = ", ".join(f"[{begin}, {end})" for begin, end in shown[:3])
    return f"keys {text}" + (f" and {len(shown) - 3} more runs" if len(shown) > 3 else "")


def check_form(mask: Mask, expressed: Mask, form: str) -> None:
    """ValueError that names the first row where `expressed`, the mask in a form, differs."""
    row = first_difference(mask, expressed)
    if row is not None:
        raise ValueError(
            f"row {row} sees {keys_in_words(mask, row)}, which {form} cannot tell beside the rows "
            f"before it; allowed: masks of that form"
        )


def rows_of_runs(mask: Mask) -> torch.Tensor:
    """int64 [runs]: the row of each."""
    return torch.repeat_interleave(torch.arange(mask.rows_q, device="cpu"), mask.runs[0].diff())


def padded_runs(mask: Mask, fill: int) -> torch.Tensor:
    """int64 [rows_q, most runs of a row, 2]: the runs of each row, and then empty ones at fill."""
    offsets, runs = mask.runs
    counts = offsets.diff()
    most = int(counts.max()) if len(counts) else 0
    found = torch.full((len(counts), most, 2), fill, dtype=torch.int64, device="cpu")
    rows = rows_of_runs(mask)
    places = torch.arange(len(runs), device="cpu") - offsets[:-1][rows]
    found[rows, places] = runs.long()
    return found


def check_square(mask: Mask, form: str) -> int:
    """The rows of a mask of self-attention; ValueError for others."""
    check_mask(mask)
    if mask.rows_q != mask.rows_k:
        raise ValueError(
            f"mask has {mask.rows_q} queries and {mask.rows_k} keys; allowed with {form}: as many"
        )
    return mask.rows_q
