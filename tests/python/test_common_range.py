# SPDX-License-Identifier: Apache-2.0
import copy
import pickle

import numpy
import pytest
import torch

from magi_attention.common import AttnMaskType, AttnRange, AttnRanges, RangeError
from magi_attention.common.ranges import check_valid_cu_seqlens, is_valid_cu_seqlens


def random_range(rng, limit=40):
    start = rng.randint(0, limit)
    return AttnRange(start, rng.randint(start, limit))


def rows(ranges):
    """The covered rows of a range or of several."""
    if isinstance(ranges, AttnRange):
        ranges = [ranges]
    return {row for r in ranges for row in range(r.start, r.end)}


def random_ranges(rng, count=6):
    return AttnRanges.from_ranges([random_range(rng) for _ in range(rng.randint(0, count))])


class TestAttnRange:
    def test_values(self):
        attn_range = AttnRange(2, 9)
        assert (attn_range.start, attn_range.end) == (2, 9)
        assert attn_range.seqlen == len(attn_range) == 7
        attn_range.start = 9
        assert attn_range.is_empty() and attn_range.seqlen == 0
        attn_range.end = 12
        assert attn_range == AttnRange(9, 12) and repr(attn_range) == "[9, 12)"
        with pytest.raises(AttributeError):
            attn_range.seqlen = 3

    def test_empty_ranges_differ_by_place(self):
        assert AttnRange(0, 0) != AttnRange(5, 5)

    def test_conversions(self):
        attn_range = AttnRange.from_range([3, 5])
        assert attn_range.to_naive_range() == (3, 5) and attn_range != (3, 5)
        clone = AttnRange.from_range(attn_range)
        clone.end = 6
        assert attn_range.end == 5
        assert hash(AttnRange(3, 5)) == hash(attn_range)
        assert pickle.loads(pickle.dumps(attn_range)) == attn_range == copy.deepcopy(attn_range)
        for call in (
            lambda: AttnRange.from_range((5, 3), check=True),
            lambda: AttnRange.from_range((5, 3)),
            lambda: AttnRange(5, 3),
            lambda: AttnRanges.from_ranges([(0, 1), (5, 3)]),
        ):
            with pytest.raises(RangeError, match=r"\[5, 3\).*start <= end"):
                call()
        assert issubclass(RangeError, ValueError)

    def test_validity(self):
        attn_range = AttnRange(5, 10)
        assert attn_range.is_valid_close(7, 7) and not attn_range.is_valid_open(7, 7)
        assert not attn_range.is_valid_close(8, 6) and attn_range.is_valid_open()
        assert attn_range.is_valid_close(start=0) and not attn_range.is_valid_close(start=11)
        attn_range.check_valid(7, 7)
        with pytest.raises(RangeError):
            attn_range.check_valid(8, 6)

    def test_offset_may_be_negative(self):
        assert AttnRange(3, 8).offset(-5) == AttnRange(-2, 3)

    def test_set_operations(self, rng):
        for _ in range(300):
            a, b = random_range(rng), random_range(rng)
            assert rows(a.intersect(b)) == rows(a) & rows(b)
            assert a.intersect_size(b) == len(rows(a) & rows(b))
            if len(a) and len(b):
                assert a.is_overlap_with(b) == bool(rows(a) & rows(b))
                assert a.is_subrange_of(b) == (rows(a) <= rows(b))

    def test_where_empty_results_lie(self):
        attn_range = AttnRange(0, 5)
        assert attn_range.intersect(AttnRange(7, 9)) == AttnRange(5, 5)


class TestAttnRanges:
    def test_list(self):
        ranges = AttnRanges()
        assert ranges.is_empty() and repr(ranges) == "[[,)]" and ranges.is_valid()
        ranges.append(AttnRange(4, 6))
        ranges.insert(0, AttnRange(0, 3))
        ranges.extend([AttnRange(6, 6)])
        assert len(ranges) == ranges.size == 3 and repr(ranges) == "[[0, 3), [4, 6), [6, 6)]"
        assert ranges[-1] == AttnRange(6, 6) and isinstance(ranges[1:], AttnRanges)
        assert ranges.clear_empty().to_naive_ranges() == [(0, 3), (4, 6)]
        assert ranges.pop() == AttnRange(6, 6) and ranges.pop(0) == AttnRange(0, 3)
        with pytest.raises(IndexError):
            ranges[5]

    def test_assignment(self):
        ranges = AttnRanges.from_ranges([(0, 1), (2, 3)])
        ranges[0] = AttnRange(5, 15)
        ranges[1:3] = AttnRanges.from_ranges([(25, 35), (45, 55)])
        assert ranges.to_naive_ranges() == [(5, 15), (25, 35), (45, 55)]
        with pytest.raises(AssertionError, match="as many as the slice"):
            ranges[1:3] = AttnRanges.from_ranges([(0, 1)])

    @pytest.mark.parametrize("add", ["append", "insert", "extend"])
    def test_checked_additions(self, add):
        ranges, bad = AttnRanges(), AttnRange(1, 1)
        bad.start = 3  # setters check nothing
        arguments = {"append": (bad,), "insert": (0, bad), "extend": ([bad],)}[add]
        with pytest.raises(RangeError):
            getattr(ranges, add)(*arguments, check=True)
        assert ranges.is_empty()
        getattr(ranges, add)(*arguments)
        assert not ranges.is_valid()
        with pytest.raises(ValueError, match="range 0"):
            ranges.check_valid()

    def test_equality_follows_changes_in_place(self):
        a = AttnRanges.from_ranges([(0, 4), (4, 8)])
        b = a.clone()
        assert a == b and hash(a) == hash(b) and a != "ranges"
        a[1].end = 9
        assert a != b and hash(a) != hash(b)
        b[1] = AttnRange(4, 9)
        assert a == b
        assert pickle.loads(pickle.dumps(a)) == a

    def test_order_counts_for_equality(self):
        assert AttnRanges.from_ranges([(0, 1), (1, 2)]) != AttnRanges.from_ranges([(1, 2), (0, 1)])

    def test_merge_and_sizes(self, rng):
        for _ in range(200):
            a = random_ranges(rng)
            merged = a.merge()
            assert rows(merged) == rows(a) and merged.is_non_overlap()
            assert all(x.end < y.start for x, y in zip(merged, list(merged)[1:]))
            assert a.total_seqlen == sum(map(len, a))
            assert a.is_non_overlap() == (a.total_seqlen == len(rows(a)))
            by_start = sorted(a.to_naive_ranges(), key=lambda pair: pair[0])
            assert a.sort().is_sorted() and a.sort().to_naive_ranges() == by_start

    def test_empty_ranges_stay_where_nothing_holds_them(self):
        ranges = AttnRanges.from_ranges([(7, 7), (0, 3), (3, 3), (9, 12), (10, 10)])
        assert ranges.merge().to_naive_ranges() == [(0, 3), (7, 7), (9, 12)]

    def test_overlaps(self, rng):
        for _ in range(200):
            a, b = random_ranges(rng), random_ranges(rng)
            assert rows(a.find_overlap_ranges(b)) == rows(a) & rows(b)

    def test_local_coordinates(self, rng):
        host = AttnRanges.from_ranges([(0, 10), (20, 30), (30, 35), (40, 50)])
        order = [row for r in host for row in range(r.start, r.end)]
        others = AttnRanges.from_ranges([(2, 8), (25, 32), (42, 45)])
        for other, found in zip(others, host.make_ranges_local(others)):
            assert order[found.start : found.end] == list(range(other.start, other.end))
        for outside in ((60, 70), (5, 25), (25, 36)):
            with pytest.raises(ValueError, match=r"is not in the \(even merged\) attn_ranges"):
                host.make_ranges_local(AttnRanges.from_ranges([outside]))

    def test_cu_seqlens(self):
        ranges = AttnRanges.from_cu_seqlens([0, 23, 49, 89], 89)
        assert ranges.to_naive_ranges() == [(0, 23), (23, 49), (49, 89)]
        assert ranges.is_cu_seqlens(89) and ranges.to_cu_seqlens(89) == [0, 23, 49, 89]
        assert AttnRanges.from_cu_seqlens([0], 0).to_cu_seqlens(0) == [0]
        assert AttnRanges.from_cu_seqlens([], 5).is_empty()
        for wrong in ([23, 89], [0, 50, 49, 89], [0, 49, 49, 89], [0, 80]):
            assert not is_valid_cu_seqlens(wrong, 89)
            with pytest.raises(ValueError, match="cu_seqlens"):
                check_valid_cu_seqlens(wrong, 89)
        for tensor in (torch.tensor([0, 23, 89]), numpy.array([0, 23, 89])):
            assert is_valid_cu_seqlens(tensor, 89) and not is_valid_cu_seqlens(tensor, 90)
            assert AttnRanges.from_cu_seqlens(tensor, 89) == AttnRanges.from_ranges(
                [(0, 23), (23, 89)]
            )
        pattern = "cu_seqlens is 5; allowed: a list of ints, or a tensor"
        with pytest.raises(TypeError, match=pattern):
            check_valid_cu_seqlens(5, 89)
        with pytest.raises(ValueError, match="without gaps"):
            AttnRanges.from_ranges([(0, 4), (5, 9)]).to_cu_seqlens(9)

    def test_what_is_no_range_is_named(self):
        for wrong, said in (
            (None, "ranges is None; allowed: a list of ranges or of pairs"),
            ([0, 5], "range is 0; allowed: an AttnRange, or a pair"),
            ([[0, 5, 6]], r"range is \[0, 5, 6\]; allowed: an AttnRange, or a pair"),
            ([["a", 5]], r"range is \['a', 5\); allowed: ints"),
        ):
            with pytest.raises(TypeError, match=said):
                AttnRanges.from_ranges(wrong)

    def test_extents(self):
        ranges = AttnRanges.from_ranges([(7, 9), (2, 3)])
        assert (ranges.start, ranges.end, ranges.max_seqlen, ranges.total_seqlen) == (2, 9, 2, 3)
        assert AttnRanges().max_seqlen == 0
        for name in ("start", "end"):
            with pytest.raises(ValueError, match="empty"):
                getattr(AttnRanges(), name)

    def test_to_tensor(self):
        tensor = AttnRanges.from_ranges([(7, 9), (2, 3)]).to_tensor()
        assert tensor.dtype == torch.int32 and tensor.tolist() == [[7, 9], [2, 3]]
        assert AttnRanges().to_tensor().shape == (0, 2)


def test_numbers_of_mask_types():
    names = ["FULL", "CAUSAL", "INVCAUSAL", "BICAUSAL"]
    for number, name in enumerate(names):
        assert AttnMaskType.from_int_type(number) is AttnMaskType[name]
        assert AttnMaskType[name].to_int_type() == number
    assert AttnMaskType("bi_causal") is AttnMaskType.BICAUSAL
    for wrong in (4, -1, "full", None):
        with pytest.raises(ValueError, match="allowed: 0, 1, 2, 3"):
            AttnMaskType.from_int_type(wrong)
