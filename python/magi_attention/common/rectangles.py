# SPDX-License-Identifier: Apache-2.0
"""Lists of rectangles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from magi_attention.common.enum import AttnMaskType
from magi_attention.common.range import AttnRange
from magi_attention.common.ranges import AttnRanges
from magi_attention.common.rectangle import AttnRectangle


class AttnRectangles:
    """A list of rectangles in the order given; pairs in several of them count several times."""

    def __init__(self) -> None:
        self._rects: list[AttnRectangle] = []

    def is_valid(self) -> bool:
        """Whether every rectangle holds a pair."""
        return all(rect.is_valid() for rect in self._rects)

    def check_valid(self) -> None:
        """ValueError naming the first rectangle without a pair."""
        for rect in self._rects:
            rect.check_valid()

    def append(self, attn_rect: AttnRectangle, check: bool = False) -> None:
        """Adds a rectangle. With `check`, ValueError for one without a pair."""
        if check:
            attn_rect.check_valid()
        self._rects.append(attn_rect)

    def extend(self, attn_rects: Iterable[AttnRectangle], check: bool = False) -> None:
        """Adds rectangles. With `check`, ValueError for one without a pair."""
        added = list(attn_rects)
        if check:
            for rect in added:
                rect.check_valid()
        self._rects.extend(added)

    @staticmethod
    def from_ranges(
        q_ranges: AttnRanges | Sequence[AttnRange] | Sequence[Sequence[int]],
        k_ranges: AttnRanges | Sequence[AttnRange] | Sequence[Sequence[int]],
        mask_types: Sequence[AttnMaskType | int],
        check: bool = False,
    ) -> AttnRectangles:
        """One rectangle per slice that holds a pair; the others, empty ranges and bidirectional
        causal slices of more queries than keys, are left out. With `check`, ValueError for ranges
        that end before they start.
        """
        if not len(q_ranges) == len(k_ranges) == len(mask_types):
            raise ValueError(
                f"q_ranges, k_ranges, mask_types have {len(q_ranges)}, {len(k_ranges)}, "
                f"{len(mask_types)} entries; allowed: equal numbers"
            )
        rects = AttnRectangles()
        for q_range, k_range, mask_type in zip(q_ranges, k_ranges, mask_types):
            q_range, k_range = (AttnRange.from_range(r, check) for r in (q_range, k_range))
            if isinstance(mask_type, int):
                mask_type = AttnMaskType.from_int_type(mask_type)
            is_hidden = mask_type is AttnMaskType.BICAUSAL and q_range.seqlen > k_range.seqlen
            if not (q_range.is_empty() or k_range.is_empty() or is_hidden):
                rects.append(AttnRectangle(q_range, k_range, mask_type=mask_type))
        return rects

    def get_qo_ranges_union(self) -> AttnRanges:
        """The queries of all rectangles, merged."""
        return AttnRanges.from_ranges([rect.q_range for rect in self._rects]).merge()

    def get_kv_ranges_union(self) -> AttnRanges:
        """The keys of all rectangles, merged."""
        return AttnRanges.from_ranges([rect.k_range for rect in self._rects]).merge()

    def total_seqlen_qo(self) -> int:
        """Distinct queries."""
        return self.get_qo_ranges_union().total_seqlen

    def total_seqlen_kv(self) -> int:
        """Distinct keys."""
        return self.get_kv_ranges_union().total_seqlen

    def cut_q(self, cut_pos: int) -> tuple[AttnRectangles, AttnRectangles]:
        """The parts with queries below cut_pos and from cut_pos on."""
        return self._cut(lambda rect: rect.cut_q(cut_pos))

    def cut_k(self, cut_pos: int) -> tuple[AttnRectangles, AttnRectangles]:
        """The parts with keys below cut_pos and from cut_pos on."""
        return self._cut(lambda rect: rect.cut_k(cut_pos))

    def _cut(self, cut: Callable) -> tuple[AttnRectangles, AttnRectangles]:
        pairs = [cut(rect) for rect in self._rects]
        return _make(left for left, _ in pairs), _make(right for _, right in pairs)

    def get_rects_within_q_segment(self, q_start: int, q_end: int) -> AttnRectangles:
        """The parts with queries in [q_start, q_end)."""
        return _make(rect.get_rect_within_q_segment(q_start, q_end) for rect in self._rects)

    def get_rects_within_k_segment(self, k_start: int, k_end: int) -> AttnRectangles:
        """The parts with keys in [k_start, k_end)."""
        return _make(rect.get_rect_within_k_segment(k_start, k_end) for rect in self._rects)

    def area(self) -> int:
        """Pairs of all rectangles."""
        return sum(rect.area() for rect in self._rects)

    @property
    def size(self) -> int:
        """Number of rectangles."""
        return len(self._rects)

    def is_empty(self) -> bool:
        """Whether there is no rectangle."""
        return not self._rects

    def __len__(self) -> int:
        return len(self._rects)

    def __getitem__(self, idx: int | slice) -> AttnRectangle | AttnRectangles:
        if isinstance(idx, slice):
            return _make(self._rects[idx])
        return self._rects[idx]

    def __setitem__(self, idx: int | slice, value: AttnRectangle | AttnRectangles) -> None:
        if isinstance(idx, slice):
            replaced = len(self._rects[idx])
            assert isinstance(value, AttnRectangles) and len(value) == replaced, (
                f"value holds {len(value)} rectangles; allowed: as many as the slice, {replaced}"
            )
            self._rects[idx] = list(value)
        else:
            self._rects[idx] = value

    def __iter__(self) -> Iterator[AttnRectangle]:
        return iter(self._rects)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttnRectangles):
            return NotImplemented
        return self._rects == other._rects

    def __hash__(self) -> int:
        return hash(tuple(self._rects))

    def __repr__(self) -> str:
        if not self._rects:
            return "[-1, -1) x [-1, -1): None"
        return "[" + ", ".join(map(repr, self._rects)) + "]"


def _make(rects: Iterable[AttnRectangle | None]) -> AttnRectangles:
    result = AttnRectangles()
    result._rects = [rect for rect in rects if rect is not None]
    return result
