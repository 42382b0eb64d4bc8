# SPDX-License-Identifier: Apache-2.0
"""A rectangle of pairs cut by a band of diagonals: closed under cutting, unlike typed slices."""

from __future__ import annotations

import itertools

from magi_attention.common._arguments import check_kind
from magi_attention.common.enum import AttnMaskType
from magi_attention.common.range import AttnRange


def _sum(first: int, last: int) -> int:
    """first + ... + last; 0 where last < first."""
    return (first + last) * (last - first + 1) // 2 if last >= first else 0


def _band_of(q_range: AttnRange, k_range: AttnRange, mask_type: AttnMaskType) -> AttnRange:
    """The diagonals of a slice; reversed where it shows no pair."""
    band = AttnRange(0, 0)
    band.start, band.end = k_range.start - (q_range.end - 1), k_range.end - 1 - q_range.start
    if mask_type in (AttnMaskType.INVCAUSAL, AttnMaskType.BICAUSAL):
        band.start = k_range.start - q_range.start
    if mask_type in (AttnMaskType.CAUSAL, AttnMaskType.BICAUSAL):
        band.end = k_range.end - q_range.end
    return band


class AttnRectangle:
    """Pairs (q, k) with q in q_range, k in k_range and d_range.start <= k - q <= d_range.end (both
    inclusive) that the slice of mask_type, an AttnMaskType or its number, shows.

    The three ranges are shrunk to the rows and diagonals that hold a pair. ValueError where none
    does, such as for a bidirectional causal slice of more queries than keys.
    """

    def __init__(
        self,
        q_range: AttnRange,
        k_range: AttnRange,
        d_range: AttnRange | None = None,
        mask_type: AttnMaskType | int = AttnMaskType.FULL,
    ) -> None:
        if isinstance(mask_type, int):
            mask_type = AttnMaskType.from_int_type(mask_type)
        check_kind("mask_type", mask_type, AttnMaskType, "an AttnMaskType or its number")
        self._q_range, self._k_range = q_range.clone(), k_range.clone()
        self._d_range = _band_of(self._q_range, self._k_range, mask_type)
        if d_range is not None:
            self._d_range.start = max(self._d_range.start, d_range.start)
            self._d_range.end = min(self._d_range.end, d_range.end)
        if not self._shrink():
            raise ValueError(
                f"rectangle is q {q_range}, k {k_range}, d {d_range}, {mask_type.value}; allowed: "
                "one that holds a pair"
            )

    @property
    def q_range(self) -> AttnRange:
        """The queries. ValueError when it is set to an empty range."""
        return self._q_range

    @q_range.setter
    def q_range(self, value: AttnRange) -> None:
        self.check_valid(q_range=value)
        self._q_range = value.clone()

    @property
    def k_range(self) -> AttnRange:
        """The keys. ValueError when it is set to an empty range."""
        return self._k_range

    @k_range.setter
    def k_range(self, value: AttnRange) -> None:
        self.check_valid(k_range=value)
        self._k_range = value.clone()

    @property
    def d_range(self) -> AttnRange:
        """The least and the greatest key - query, both inclusive. ValueError when it is set to a
        reversed range.
        """
        return self._d_range

    @d_range.setter
    def d_range(self, value: AttnRange) -> None:
        self.check_valid(d_range=value)
        self._d_range = value.clone()

    def is_valid(
        self,
        q_range: AttnRange | None = None,
        k_range: AttnRange | None = None,
        d_range: AttnRange | None = None,
    ) -> bool:
        """Whether there are queries, keys and diagonals; own ranges by default."""
        q_range, k_range, d_range = self._own_unless_given(q_range, k_range, d_range)
        return q_range.is_valid_open() and k_range.is_valid_open() and d_range.is_valid_close()

    def check_valid(
        self,
        q_range: AttnRange | None = None,
        k_range: AttnRange | None = None,
        d_range: AttnRange | None = None,
    ) -> None:
        """ValueError unless is_valid."""
        q_range, k_range, d_range = self._own_unless_given(q_range, k_range, d_range)
        for name, own, is_valid in (
            ("q_range", q_range, q_range.is_valid_open()),
            ("k_range", k_range, k_range.is_valid_open()),
            ("d_range", d_range, d_range.is_valid_close()),
        ):
            if not is_valid:
                raise ValueError(f"{name} is {own}; allowed: a non-empty range")

    def _own_unless_given(self, q_range, k_range, d_range) -> tuple[AttnRange, ...]:
        return (
            self._q_range if q_range is None else q_range,
            self._k_range if k_range is None else k_range,
            self._d_range if d_range is None else d_range,
        )

    def get_valid_or_none(self) -> AttnRectangle | None:
        """Itself where it holds a pair, else None."""
        return self if self.is_valid() else None

    def shrink_d_range(self) -> bool:
        """Drops diagonals without a pair; False where none is left."""
        low = max(self._d_range.start, self._k_range.start - (self._q_range.end - 1))
        high = min(self._d_range.end, self._k_range.end - 1 - self._q_range.start)
        self._d_range.start, self._d_range.end = low, high
        return low <= high

    def shrink_q_range(self) -> bool:
        """Drops queries without a pair; False where none is left."""
        start = max(self._q_range.start, self._k_range.start - self._d_range.end)
        end = min(self._q_range.end, self._k_range.end - self._d_range.start)
        self._q_range.start, self._q_range.end = start, end
        return start < end

    def shrink_k_range(self) -> bool:
        """Drops keys without a pair; False where none is left."""
        start = max(self._k_range.start, self._d_range.start + self._q_range.start)
        end = min(self._k_range.end, self._d_range.end + self._q_range.end)
        self._k_range.start, self._k_range.end = start, end
        return start < end

    def _shrink(self) -> bool:
        """Whether a pair is left."""
        return (
            self.is_valid()
            and self.shrink_d_range()
            and self.shrink_q_range()
            and self.shrink_k_range()
            and self.shrink_d_range()
        )

    def clone(self) -> AttnRectangle:
        """An equal rectangle with ranges of its own."""
        copy = object.__new__(AttnRectangle)
        copy._q_range = self._q_range.clone()
        copy._k_range = self._k_range.clone()
        copy._d_range = self._d_range.clone()
        return copy

    def cut_q(self, cut_pos: int) -> tuple[AttnRectangle | None, AttnRectangle | None]:
        """The parts with queries below cut_pos and from cut_pos on."""
        return (
            self.get_rect_within_q_segment(self._q_range.start, cut_pos),
            self.get_rect_within_q_segment(cut_pos, self._q_range.end),
        )

    def cut_k(self, cut_pos: int) -> tuple[AttnRectangle | None, AttnRectangle | None]:
        """The parts with keys below cut_pos and from cut_pos on."""
        return (
            self.get_rect_within_k_segment(self._k_range.start, cut_pos),
            self.get_rect_within_k_segment(cut_pos, self._k_range.end),
        )

    def get_rect_within_q_segment(self, q_start: int, q_end: int) -> AttnRectangle | None:
        """The part with queries in [q_start, q_end), or None."""
        part = self.clone()
        part._q_range = part._q_range.truncate(q_start, q_end)
        return part if part._shrink() else None

    def get_rect_within_k_segment(self, k_start: int, k_end: int) -> AttnRectangle | None:
        """The part with keys in [k_start, k_end), or None."""
        part = self.clone()
        part._k_range = part._k_range.truncate(k_start, k_end)
        return part if part._shrink() else None

    def intersection_q_id_on_left_boundary(self) -> int:
        """The query where the lowest diagonal meets the first key."""
        return self._k_range.start - self._d_range.start

    def intersection_q_id_on_right_boundary(self) -> int:
        """The query where the highest diagonal meets the last key."""
        return self._k_range.end - 1 - self._d_range.end

    def _reaches_first_keys(self) -> bool:
        return self._d_range.start <= self._k_range.start - (self._q_range.end - 1)

    def _reaches_last_keys(self) -> bool:
        return self._d_range.end >= self._k_range.end - 1 - self._q_range.start

    def is_full(self) -> bool:
        """Whether every query sees every key."""
        return self._reaches_first_keys() and self._reaches_last_keys()

    def is_causal(self) -> bool:
        """Whether it is a causal slice, aligned bottom right."""
        return (
            self._reaches_first_keys()
            and self._d_range.end == self._k_range.end - self._q_range.end
        )

    def is_inv_causal(self) -> bool:
        """Whether it is an inverse causal slice, aligned top left."""
        return (
            self._d_range.start == self._k_range.start - self._q_range.start
            and self._reaches_last_keys()
        )

    def is_bi_causal(self) -> bool:
        """Whether it is a causal and an inverse causal slice at once."""
        return (
            self._d_range.start == self._k_range.start - self._q_range.start
            and self._d_range.end == self._k_range.end - self._q_range.end
        )

    def to_qk_range_mask_type(self) -> list[tuple[AttnRange, AttnRange, int]]:
        """The same pairs as at most three slices (q_range, k_range, number of the mask type)."""
        types = (self.is_full, self.is_causal, self.is_inv_causal, self.is_bi_causal)
        for number, is_type in enumerate(types):
            if is_type():
                return [(self._q_range.clone(), self._k_range.clone(), number)]
        left = self.intersection_q_id_on_left_boundary()
        right = self.intersection_q_id_on_right_boundary()
        if left == self._q_range.end - 1:
            cuts = [right + 1]
        elif right == self._q_range.start or right <= left:
            cuts = [left]
        elif right == left + 1:
            cuts = [right]
        else:
            cuts = [left, right + 1]
        slices: list[tuple[AttnRange, AttnRange, int]] = []
        bounds = [self._q_range.start, *cuts, self._q_range.end]
        for start, end in itertools.pairwise(bounds):
            part = self.get_rect_within_q_segment(start, end)
            if part is not None:
                slices.extend(part.to_qk_range_mask_type())
        return slices

    def area(self) -> int:
        """Number of pairs."""
        if not self.is_valid():
            return 0
        q, k, d = self._q_range, self._k_range, self._d_range
        return self.count_areas(q.start, q.end, k.start, k.end, d.start, d.end)

    def count_areas(self, lq: int, rq: int, lk: int, rk: int, ld: int, rd: int) -> int:
        """Pairs with lq <= q < rq, lk <= k < rk, ld <= k - q <= rd."""
        rq, rk = rq - 1, rk - 1
        if lk > rk or ld > rd:
            return 0
        first, last = max(lq, lk - rd), min(rq, rk - ld)  # every query between sees a key
        if first > last:
            return 0
        # A row holds min(rk, q + rd) - max(lk, q + ld) + 1 keys; the sums are split where the
        # minimum and the maximum change sides.
        turn = min(max(rk - rd, first - 1), last)
        upper = _sum(first + rd, turn + rd) + rk * (last - turn)
        turn = min(max(lk - ld, first - 1), last)
        lower = lk * (turn - first + 1) + _sum(turn + 1 + ld, last + ld)
        return upper - lower + (last - first + 1)

    def __len__(self) -> int:
        """1: one rectangle."""
        return 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttnRectangle):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[AttnRange, AttnRange, AttnRange]:
        return (self._q_range, self._k_range, self._d_range)

    def __repr__(self) -> str:
        return f"{self._q_range} x {self._k_range} x {self._d_range}"
