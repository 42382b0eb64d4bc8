# SPDX-License-Identifier: Apache-2.0
"""Lists of ranges."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from magi_attention.common._arguments import as_bool
from magi_attention.common.range import AttnRange, NaiveRange, RangeError, num_edits

if TYPE_CHECKING:
    import torch

NaiveRanges: TypeAlias = Sequence[NaiveRange]
Bounds: TypeAlias = "Sequence[int] | torch.Tensor"


def is_valid_cu_seqlens(cu_seqlens: Bounds, seq_len: int) -> bool:
    """Whether cu_seqlens, a list or a tensor, is empty, or grows strictly from 0 to seq_len."""
    bounds = _as_list(cu_seqlens)
    if not bounds:
        return True
    grows = all(left < right for left, right in itertools.pairwise(bounds))
    return bounds[0] == 0 and bounds[-1] == seq_len and grows


def check_valid_cu_seqlens(cu_seqlens: Bounds, seq_len: int) -> None:
    """ValueError unless cu_seqlens, a list or a tensor, is empty, or grows strictly from 0 to
    seq_len.
    """
    bounds = _as_list(cu_seqlens)
    if not is_valid_cu_seqlens(bounds, seq_len):
        raise ValueError(
            f"cu_seqlens is {bounds}; allowed: values that grow from 0 to seq_len {seq_len}"
        )


def _as_list(cu_seqlens: Bounds) -> list[int]:
    """The bounds of a tensor, an array or a sequence."""
    if hasattr(cu_seqlens, "tolist"):
        return cu_seqlens.tolist()
    if not hasattr(cu_seqlens, "__iter__"):
        raise TypeError(f"cu_seqlens is {cu_seqlens!r}; allowed: a list of ints, or a tensor")
    return list(cu_seqlens)


class AttnRanges:
    """A list of ranges in the order given; they may overlap.

    Two lists are equal when they hold equal ranges in the same order. Comparing and hashing a list
    that did not change since the last time takes no walk over its ranges.
    """

    __slots__ = ("_content", "_content_edits", "_ranges")

    def __init__(self) -> None:
        self._ranges: list[AttnRange] = []
        self._content: bytes | None = None
        self._content_edits = -1

    def content(self) -> bytes:
        """The ranges as int64 [n, 2]: what comparison and hashing read."""
        if self._content is None or self._content_edits != num_edits():
            flat = array("q", [v for r in self._ranges for v in (r._start, r._end)])
            self._content = flat.tobytes()
            self._content_edits = num_edits()
        return self._content

    def is_valid(self) -> bool:
        """Whether every range has start <= end."""
        return all(r.is_valid_close() for r in self._ranges)

    def check_valid(self) -> None:
        """ValueError naming the first range that ends before it starts."""
        for index, attn_range in enumerate(self._ranges):
            if not attn_range.is_valid_close():
                raise ValueError(f"range {index} is {attn_range}; allowed: start <= end")

    def append(self, attn_range: AttnRange, check: bool = False) -> None:
        """Adds a range after the others. With `check`, RangeError unless start <= end."""
        self.insert(len(self._ranges), attn_range, check)

    def insert(self, idx: int, attn_range: AttnRange, check: bool = False) -> None:
        """Adds a range before number idx. With `check`, RangeError unless start <= end."""
        if check:
            attn_range.check_valid()
        self._ranges.insert(idx, attn_range)
        self._content = None

    def extend(self, attn_ranges: Iterable[AttnRange], check: bool = False) -> None:
        """Adds ranges after the others. With `check`, RangeError unless each has start <= end."""
        added = list(attn_ranges)
        if check:
            for attn_range in added:
                attn_range.check_valid()
        self._ranges.extend(added)
        self._content = None

    def pop(self, idx: int = -1) -> AttnRange:
        """Takes range number idx out. IndexError where there is none."""
        self._content = None
        return self._ranges.pop(idx)

    def clear_empty(self) -> AttnRanges:
        """A list of the ranges that hold rows."""
        return _make(r for r in self._ranges if not r.is_empty())

    def sort(self) -> AttnRanges:
        """A list in order of start; ranges of one start keep their order."""
        return _make(r.clone() for r in sorted(self._ranges, key=lambda r: r._start))

    def merge(self) -> AttnRanges:
        """The covered rows as the fewest ranges, in order: ranges that overlap or touch are joined.
        Empty ranges apart from the others stay.
        """
        merged: list[list[int]] = []
        for start, end in sorted(r.to_naive_range() for r in self._ranges):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        return AttnRanges.from_ranges(merged)

    def is_sorted(self) -> bool:
        """Whether starts do not decrease."""
        starts = [r._start for r in self._ranges]
        return all(left <= right for left, right in itertools.pairwise(starts))

    def is_non_overlap(self) -> bool:
        """Whether no row is in two ranges."""
        return self.total_seqlen == self.merge().total_seqlen

    def is_cu_seqlens(self, seqlen: int) -> bool:
        """Whether the ranges follow each other from 0 to seqlen."""
        ends = [0] + [r._end for r in self._ranges]
        follow = all(r._start == end for r, end in zip(self._ranges, ends))
        return follow and ends[-1] == seqlen

    def to_cu_seqlens(self, seq_len: int) -> list[int]:
        """Bounds of ranges that follow each other from 0 to seq_len; ValueError if they do not."""
        if not self.is_cu_seqlens(seq_len):
            raise ValueError(f"ranges are {self}; allowed: ranges without gaps from 0 to {seq_len}")
        return [0] + [r._end for r in self._ranges]

    def make_ranges_local(
        self, other_attn_ranges: AttnRanges, is_self_merged: bool = False
    ) -> AttnRanges:
        """Finds where each of other_attn_ranges lies if the rows of this list are laid out
        merged, one after the other. ValueError unless each lies inside one merged range.
        """
        merged = self if as_bool("is_self_merged", is_self_merged) else self.merge()
        offsets = list(itertools.accumulate((r.seqlen for r in merged._ranges), initial=0))
        starts = [r._start for r in merged._ranges]
        return _make(merged._localize(r, starts, offsets) for r in other_attn_ranges)

    def _localize(self, other: AttnRange, starts: list[int], offsets: list[int]) -> AttnRange:
        index = bisect_right(starts, other._start) - 1
        if index < 0 or not other.is_subrange_of(self._ranges[index]):
            raise ValueError(
                f"The attn_range {other} is not in the (even merged) attn_ranges {self}"
            )
        return other.offset(offsets[index] - starts[index])

    def find_overlap_ranges(
        self,
        other_attn_ranges: AttnRanges,
        is_self_merged: bool = False,
        is_other_merged: bool = False,
    ) -> AttnRanges:
        """The rows that both lists cover, merged. Neither list changes."""
        ours = self if as_bool("is_self_merged", is_self_merged) else self.merge()
        is_merged = as_bool("is_other_merged", is_other_merged)
        theirs = other_attn_ranges if is_merged else other_attn_ranges.merge()
        common: list[AttnRange] = []
        i = j = 0
        while i < len(ours) and j < len(theirs):
            left, right = ours._ranges[i], theirs._ranges[j]
            if left.is_overlap_with(right):
                common.append(left.intersect(right))
            if left._end < right._end:
                i += 1
            else:
                j += 1
        return _make(common)

    def to_tensor(self, device: torch.device | str | int = "cpu") -> torch.Tensor:
        """int32 [n, 2] of start and end."""
        import torch

        return torch.tensor(self.to_naive_ranges(), dtype=torch.int32, device=device).reshape(-1, 2)

    @staticmethod
    def from_cu_seqlens(cu_seqlens: Bounds, seq_len: int) -> AttnRanges:
        """Documents between bounds, a list or a tensor, which is waited for on a GPU; ValueError
        unless they grow from 0 to seq_len.
        """
        bounds = _as_list(cu_seqlens)
        check_valid_cu_seqlens(bounds, seq_len)
        return AttnRanges.from_ranges(list(itertools.pairwise(bounds)))

    def clone(self) -> AttnRanges:
        """An equal list with ranges of its own."""
        made = _make([r.clone() for r in self._ranges])
        made._content, made._content_edits = self._content, self._content_edits
        return made

    @staticmethod
    def from_ranges(
        ranges: AttnRanges | Sequence[AttnRange] | Sequence[Sequence[int]], check: bool = False
    ) -> AttnRanges:
        """A list with ranges of its own, from ranges or pairs of ints; RangeError unless each has
        start <= end, TypeError for what is none.
        """
        if not hasattr(ranges, "__iter__"):
            raise TypeError(f"ranges is {ranges!r}; allowed: a list of ranges or of pairs")
        made = _make(AttnRange.from_range(r) for r in ranges)
        if check:
            made.check_valid()
        return made

    def to_naive_ranges(self) -> list[tuple[int, int]]:
        """(start, end) of every range."""
        return [(r._start, r._end) for r in self._ranges]

    @property
    def total_seqlen(self) -> int:
        """Rows of all ranges, each counted as often as it appears."""
        return sum(r.seqlen for r in self._ranges)

    @property
    def max_seqlen(self) -> int:
        """Rows of the longest range, 0 for an empty list."""
        return max((r.seqlen for r in self._ranges), default=0)

    @property
    def start(self) -> int:
        """The lowest start; ValueError for an empty list."""
        if not self._ranges:
            raise ValueError("ranges is empty; allowed: at least one range")
        return min(r._start for r in self._ranges)

    @property
    def end(self) -> int:
        """The highest end; ValueError for an empty list."""
        if not self._ranges:
            raise ValueError("ranges is empty; allowed: at least one range")
        return max(r._end for r in self._ranges)

    @property
    def size(self) -> int:
        """Number of ranges."""
        return len(self._ranges)

    def is_empty(self) -> bool:
        """Whether there is no range."""
        return not self._ranges

    def __len__(self) -> int:
        return len(self._ranges)

    def __getitem__(self, idx: int | slice) -> AttnRange | AttnRanges:
        if isinstance(idx, slice):
            return _make(self._ranges[idx])
        return self._ranges[idx]

    def __setitem__(self, idx: int | slice, value: AttnRange | AttnRanges) -> None:
        self._content = None
        if isinstance(idx, slice):
            replaced = len(range(*idx.indices(max(len(self._ranges), idx.stop or 0))))
            assert isinstance(value, AttnRanges) and len(value) == replaced, (
                f"value holds {len(value)} ranges; allowed: as many as the slice, {replaced}"
            )
            self._ranges[idx] = list(value)
        else:
            self._ranges[idx] = value

    def __iter__(self) -> Iterator[AttnRange]:
        return iter(self._ranges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttnRanges):
            return NotImplemented
        return self.content() == other.content()

    def __hash__(self) -> int:
        return hash(self.content())

    def __repr__(self) -> str:
        if not self._ranges:
            return "[[,)]"
        return "[" + ", ".join(map(repr, self._ranges)) + "]"

    def __reduce__(self):
        return (AttnRanges.from_ranges, (self.to_naive_ranges(),))


def _make(ranges: Iterable[AttnRange]) -> AttnRanges:
    result = AttnRanges()
    result._ranges = list(ranges)
    return result


__all__ = [
    "AttnRange", "AttnRanges", "NaiveRanges", "RangeError", "check_valid_cu_seqlens",
    "is_valid_cu_seqlens",
]  # fmt: skip
