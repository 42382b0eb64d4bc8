# SPDX-License-Identifier: Apache-2.0
"""A mask together with its dense picture, for small examples and tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from magi_attention._native import MaskHandle, mask_slices_of_matrix
from magi_attention._native.tensors import as_plain, as_tensor
from magi_attention.common.enum import AttnMaskType
from magi_attention.common.range import AttnRange
from magi_attention.common.ranges import AttnRanges
from magi_attention.common.rectangles import AttnRectangles

if TYPE_CHECKING:
    import numpy as np


class AttnMask(nn.Module):
    """Ranges and types beside the mask they describe, int32 [total_seqlen_q, total_seqlen_k, 1].

    Made by `from_ranges` and `from_mask` only.
    """

    meta_info_dim_size = 1
    mask_flag_dim_idx = 0
    masked_flag = 0
    unmasked_flag = 1
    device = "cpu"
    _can_instantiate = False

    def __init__(
        self,
        mask_tensor: torch.Tensor,
        q_ranges: AttnRanges,
        k_ranges: AttnRanges,
        attn_mask_type: list[AttnMaskType],
        total_seqlen_q: int,
        total_seqlen_k: int,
    ) -> None:
        if not AttnMask._can_instantiate:
            raise RuntimeError("AttnMask is made by AttnMask.from_ranges or AttnMask.from_mask")
        super().__init__()
        self.mask_tensor = mask_tensor
        self.q_ranges = q_ranges
        self.k_ranges = k_ranges
        self.attn_mask_type = attn_mask_type
        self.total_seqlen_q = total_seqlen_q
        self.total_seqlen_k = total_seqlen_k

    @property
    def mask_flag_array(self) -> np.ndarray:
        """int32 [total_seqlen_q, total_seqlen_k]: unmasked_flag where visible."""
        return self.mask_tensor[..., AttnMask.mask_flag_dim_idx].numpy()

    def tuples(self) -> Iterator[tuple[AttnRange, AttnRange, AttnMaskType]]:
        """Slices in order."""
        return zip(self.q_ranges, self.k_ranges, self.attn_mask_type)

    @classmethod
    def from_ranges(
        cls,
        q_ranges: AttnRanges,
        k_ranges: AttnRanges,
        attn_mask_type: Sequence[AttnMaskType],
        total_seqlen_q: int | None = None,
        total_seqlen_k: int | None = None,
    ) -> AttnMask:
        """From slices of any of the four types; lengths default to the ends of the ranges."""
        types = list(attn_mask_type)
        for mask_type in types:
            if not isinstance(mask_type, AttnMaskType):
                names = ", ".join(f"AttnMaskType.{known.name}" for known in AttnMaskType)
                raise ValueError(f"attn_mask_type holds {mask_type!r}; allowed: {names}")
        if not len(q_ranges) == len(k_ranges) == len(types):
            raise ValueError(
                f"q_ranges, k_ranges, attn_mask_type have {len(q_ranges)}, {len(k_ranges)}, "
                f"{len(types)} entries; allowed: equal numbers"
            )
        rows_q = q_ranges.end if total_seqlen_q is None else total_seqlen_q
        rows_k = k_ranges.end if total_seqlen_k is None else total_seqlen_k
        for name, ranges, rows in (("q", q_ranges, rows_q), ("k", k_ranges, rows_k)):
            for attn_range in ranges:
                if not 0 <= attn_range.start <= attn_range.end <= rows:
                    raise ValueError(
                        f"{name} range is {attn_range}; allowed: 0 <= start <= end <= {rows}"
                    )
        visible = torch.zeros(rows_q, rows_k, dtype=torch.bool, device="cpu")
        rows, keys = (torch.arange(n, device="cpu") for n in (rows_q, rows_k))
        diagonal = keys[None, :] - rows[:, None]
        for rect in AttnRectangles.from_ranges(q_ranges, k_ranges, types):
            rows = slice(rect.q_range.start, rect.q_range.end)
            keys = slice(rect.k_range.start, rect.k_range.end)
            band = diagonal[rows, keys]
            visible[rows, keys] |= (band >= rect.d_range.start) & (band <= rect.d_range.end)
        flags = torch.where(visible, cls.unmasked_flag, cls.masked_flag).to(torch.int32)
        with cls.can_instantiate_ctx():
            return cls(
                flags.unsqueeze(-1), q_ranges.clone(), k_ranges.clone(), types, rows_q, rows_k
            )

    @classmethod
    def from_mask(cls, mask: torch.Tensor | list[list[int]]) -> AttnMask:
        """From a dense mask [rows_q, rows_k], non-zero: visible. Rows that see one run of keys each
        become FULL and CAUSAL slices of consecutive rows; other masks become whatever slices
        describe them.
        """
        visible = as_plain("mask", as_tensor(mask)).to("cpu") != 0
        if visible.dim() != 2:
            raise ValueError(f"mask has {visible.dim()} axes; allowed: 2, [rows_q, rows_k]")
        runs = _key_runs(visible)
        if runs is not None:
            slices = _slices_of_runs(runs, visible.shape[1])
        else:
            slices = mask_slices_of_matrix(visible)
        return cls.from_ranges(
            AttnRanges.from_ranges([s[0:2] for s in slices]),
            AttnRanges.from_ranges([s[2:4] for s in slices]),
            [AttnMaskType.from_int_type(s[4]) for s in slices],
            *visible.shape,
        )

    def calc_sub_area(self, q_range: AttnRange, k_range: AttnRange) -> int:
        """Visible pairs of q_range x k_range; pairs in several slices count once."""
        flags = self._part(q_range, k_range)
        return int((flags == self.unmasked_flag).sum())

    def make_sub_mask(self, q_range: AttnRange, k_range: AttnRange) -> AttnMask:
        """The mask of q_range x k_range, with rows counted from their starts."""
        return AttnMask.from_mask(self._part(q_range, k_range))

    def _part(self, q_range: AttnRange, k_range: AttnRange) -> torch.Tensor:
        return self.mask_tensor[
            q_range.start : q_range.end, k_range.start : k_range.end, self.mask_flag_dim_idx
        ]

    @property
    def area(self) -> int:
        """Visible pairs."""
        return self.calc_sub_area(
            AttnRange(0, self.total_seqlen_q), AttnRange(0, self.total_seqlen_k)
        )

    def is_square(self) -> bool:
        """Whether there are as many queries as keys."""
        return self.total_seqlen_q == self.total_seqlen_k

    def is_pure_full(self) -> bool:
        """Whether every query sees every key."""
        return self.area == self.total_seqlen_q * self.total_seqlen_k

    def is_pure_causal(self) -> bool:
        """Whether the mask is one causal slice over everything."""
        causal = AttnMask.make_causal_mask(self.total_seqlen_q, self.total_seqlen_k)
        seen = self.mask_tensor[..., self.mask_flag_dim_idx]
        return torch.equal(seen, causal)

    def is_varlen_full(self) -> bool:
        """Whether documents that tile queries and keys in order see themselves fully."""
        return self._is_varlen(AttnMaskType.FULL)

    def is_varlen_causal(self) -> bool:
        """Whether documents that tile queries and keys in order see themselves causally."""
        return self._is_varlen(AttnMaskType.CAUSAL)

    def _is_varlen(self, mask_type: AttnMaskType) -> bool:
        return (
            self.q_ranges.is_cu_seqlens(self.total_seqlen_q)
            and self.k_ranges.is_cu_seqlens(self.total_seqlen_k)
            and all(given is mask_type for given in self.attn_mask_type)
        )

    def is_empty(self) -> bool:
        """Whether no pair is visible."""
        return self.area == 0

    @staticmethod
    def make_causal_mask(
        seqlen_q: int,
        seqlen_k: int,
        align: str = "bottom-right",
        dtype: torch.dtype = torch.int32,
        device: torch.device | str | int = "cpu",
    ) -> torch.Tensor:
        """[seqlen_q, seqlen_k]: 1 where visible; align is "bottom-right" or "top-left"."""
        if align not in ("bottom-right", "top-left"):
            raise ValueError(f'align is {align!r}; allowed: "bottom-right", "top-left"')
        diagonal = seqlen_k - seqlen_q if align == "bottom-right" else 0
        return torch.ones(seqlen_q, seqlen_k, dtype=dtype, device=device).tril(diagonal)

    def visualize(self, save_path: str | None = None) -> None:
        """Draws the mask as SVG into save_path, or prints it as text."""
        if save_path is None:
            for row in self.mask_flag_array.tolist():
                print("".join("#" if flag == self.unmasked_flag else "." for flag in row))
            return
        mask = MaskHandle.from_ranges(
            self.q_ranges.to_naive_ranges(),
            self.k_ranges.to_naive_ranges(),
            [mask_type.to_int_type() for mask_type in self.attn_mask_type],
            self.total_seqlen_q,
            self.total_seqlen_k,
        )
        with open(save_path, "w", encoding="utf-8") as file:
            file.write(mask.draw())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttnMask):
            return NotImplemented
        return (
            torch.equal(self.mask_tensor, other.mask_tensor)
            and self.q_ranges == other.q_ranges
            and self.k_ranges == other.k_ranges
            and self.attn_mask_type == other.attn_mask_type
        )

    __hash__ = nn.Module.__hash__

    @classmethod
    @contextmanager
    def can_instantiate_ctx(cls) -> Iterator[None]:
        """Lets the constructor be called inside."""
        previous = AttnMask._can_instantiate
        AttnMask._can_instantiate = True
        try:
            yield
        finally:
            AttnMask._can_instantiate = previous


def _key_runs(visible: torch.Tensor) -> list[tuple[int, int]] | None:
    """Per row the run of keys it sees, (0, 0) for none; None if a row sees several runs."""
    runs = []
    for row in visible:
        keys = row.nonzero().flatten().tolist()
        if keys and keys[-1] - keys[0] + 1 != len(keys):
            return None
        runs.append((keys[0], keys[-1] + 1) if keys else (0, 0))
    return runs


def _slices_of_runs(
    runs: list[tuple[int, int]], num_keys: int
) -> list[tuple[int, int, int, int, int]]:
    """Greedy: consecutive rows that see the same keys are one FULL slice, rows that see one key
    more each one CAUSAL slice. Empty rows join a CAUSAL slice that begins after them with one key,
    else they are one of no keys.
    """
    full, causal = AttnMaskType.FULL.to_int_type(), AttnMaskType.CAUSAL.to_int_type()
    slices, row, num_rows = [], 0, len(runs)
    while row < num_rows:
        begin = row
        while row < num_rows and runs[row] == (0, 0):
            row += 1
        first = row
        if row == num_rows or (row > begin and runs[row][1] - runs[row][0] != 1):
            keys = min(begin, num_keys)
            slices.append((begin, row, keys, keys, causal))
            continue
        start, end = runs[row]
        row += 1
        if begin < first or (row < num_rows and runs[row] == (start, end + 1)):
            while row < num_rows and runs[row] == (start, runs[row - 1][1] + 1):
                row += 1
            slices.append((begin, row, start, runs[row - 1][1], causal))
            continue
        while row < num_rows and runs[row] == (start, end):
            row += 1
        slices.append((begin, row, start, end, full))
    return slices
