# SPDX-License-Identifier: Apache-2.0
"""A half-open range of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

NaiveRange: TypeAlias = tuple[int, int]

# Grows with every change of any range in place, so that containers know when what they derived
# from their ranges may be stale.
_num_edits = 0
_new = object.__new__  # without the checks of a new range


def num_edits() -> int:
    """Counts how often any range was changed in place so far."""
    return _num_edits


class RangeError(ValueError):
    """A range ends before it starts."""


class AttnRange:
    """Rows [start, end); RangeError unless start <= end. Both may be negative, as for diagonals.
    Setting start or end later checks nothing: check_valid does.
    """

    __slots__ = ("_end", "_start")

    def __init__(self, start: int, end: int) -> None:
        try:
            is_reversed = start > end
        except TypeError:
            raise TypeError(f"range is [{start!r}, {end!r}); allowed: ints") from None
        if is_reversed:
            raise RangeError(f"range is [{start}, {end}); allowed: start <= end")
        self._start = start
        self._end = end

    @property
    def start(self) -> int:
        """The first row."""
        return self._start

    @start.setter
    def start(self, value: int) -> None:
        global _num_edits
        _num_edits += 1
        self._start = value

    @property
    def end(self) -> int:
        """The row after the last."""
        return self._end

    @end.setter
    def end(self, value: int) -> None:
        global _num_edits
        _num_edits += 1
        self._end = value

    @property
    def seqlen(self) -> int:
        """Number of rows."""
        return self._end - self._start

    def to_naive_range(self) -> tuple[int, int]:
        """(start, end)."""
        return (self._start, self._end)

    @staticmethod
    def from_range(attn_range: AttnRange | Sequence[int], check: bool = False) -> AttnRange:
        """Makes one of a range or a pair of ints; RangeError unless start <= end, whatever `check`.
        TypeError for what is neither.
        """
        if isinstance(attn_range, AttnRange):
            return attn_range.clone()
        try:
            start, end = attn_range
        except (TypeError, ValueError):
            raise TypeError(
                f"range is {attn_range!r}; allowed: an AttnRange, or a pair [start, end]"
            ) from None
        return AttnRange(start, end)

    def clone(self) -> AttnRange:
        """An equal range of its own."""
        made = _new(AttnRange)
        made._start = self._start
        made._end = self._end
        return made

    def offset(self, offset: int) -> AttnRange:
        """The range moved by `offset` rows."""
        return AttnRange(self._start + offset, self._end + offset)

    def intersect(self, other: AttnRange) -> AttnRange:
        """The rows of both; where there is none, an empty range at the lower end."""
        upper = min(self._end, other._end)
        return AttnRange(min(max(self._start, other._start), upper), upper)

    def intersect_size(self, other: AttnRange) -> int:
        """Number of rows of both."""
        return max(0, min(self._end, other._end) - max(self._start, other._start))

    def is_subrange_of(self, other: AttnRange) -> bool:
        """Whether every row is one of other's; an empty range lies where its bounds do."""
        return other._start <= self._start and self._end <= other._end

    def is_overlap_with(self, other: AttnRange) -> bool:
        """Whether both have a row in common; an empty one overlaps what it lies inside of."""
        return self._start < other._end and other._start < self._end

    def is_empty(self) -> bool:
        """Whether start and end are equal."""
        return self._start == self._end

    def is_valid_close(self, start: int | None = None, end: int | None = None) -> bool:
        """Whether start <= end, as for the closed interval [start, end]; own values by default."""
        return (self._start if start is None else start) <= (self._end if end is None else end)

    def is_valid_open(self, start: int | None = None, end: int | None = None) -> bool:
        """Whether start < end, as for a non-empty [start, end); own values by default."""
        return (self._start if start is None else start) < (self._end if end is None else end)

    def check_valid(self, start: int | None = None, end: int | None = None) -> None:
        """RangeError unless start <= end; own values by default."""
        if not self.is_valid_close(start, end):
            lower = self._start if start is None else start
            upper = self._end if end is None else end
            raise RangeError(f"range is [{lower}, {upper}); allowed: start <= end")

    def __len__(self) -> int:
        return max(0, self._end - self._start)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttnRange):
            return NotImplemented
        return self._start == other._start and self._end == other._end

    def __hash__(self) -> int:
        return hash((self._start, self._end))

    def __repr__(self) -> str:
        return f"[{self._start}, {self._end})"

    def __reduce__(self):
        return (AttnRange, (self._start, self._end))
