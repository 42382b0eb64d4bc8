# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from magi_attention.common import AttnMaskType, AttnRange, AttnRanges
from magi_attention.common.mask import AttnMask
from magi_attention.common.rectangle import AttnRectangle
from magi_attention.common.rectangles import AttnRectangles

TYPES = list(AttnMaskType)


def visible(q, k, mask_type):
    """The definition: causal is aligned bottom right, inverse causal top left."""
    kind = mask_type.to_int_type()
    low = k.start - q.start if kind & 2 else -(10**6)
    high = k.end - q.end if kind & 1 else 10**6
    pairs = ((i, j) for i in range(q.start, q.end) for j in range(k.start, k.end))
    return {(i, j) for i, j in pairs if low <= j - i <= high}


def random_range(rng, limit=16):
    start = rng.randint(0, limit - 1)
    return AttnRange(start, rng.randint(start + 1, limit))


def random_rectangle(rng):
    q, k = random_range(rng), random_range(rng)
    low = rng.randint(-18, 18)
    band = AttnRange(low, rng.randint(low, 18))
    pairs = {
        (i, j)
        for i in range(q.start, q.end)
        for j in range(k.start, k.end)
        if band.start <= j - i <= band.end
    }
    return AttnRectangle(q, k, band) if pairs else None, pairs


def pairs_of(rect):
    if rect is None or not rect.is_valid():
        return set()
    q, k, d = rect.q_range, rect.k_range, rect.d_range
    pairs = ((i, j) for i in range(q.start, q.end) for j in range(k.start, k.end))
    return {(i, j) for i, j in pairs if d.start <= j - i <= d.end}


class TestEnum:
    def test_numbers(self):
        names = ["FULL", "CAUSAL", "INVCAUSAL", "BICAUSAL"]
        for number, name in enumerate(names):
            assert AttnMaskType.from_int_type(number) is AttnMaskType[name]
            assert AttnMaskType[name].to_int_type() == number
        assert AttnMaskType("bi_causal") is AttnMaskType.BICAUSAL
        for wrong in (4, -1, "full", None):
            with pytest.raises(ValueError, match="allowed: 0, 1, 2, 3"):
                AttnMaskType.from_int_type(wrong)


class TestAttnRectangle:
    def test_slices_have_the_pairs_of_their_type(self, rng):
        for _ in range(100):
            q, k = random_range(rng), random_range(rng)
            for mask_type in TYPES:
                expected = visible(q, k, mask_type)
                if not expected:
                    with pytest.raises(ValueError, match="one that holds a pair"):
                        AttnRectangle(q, k, mask_type=mask_type)
                    continue
                rect = AttnRectangle(q, k, mask_type=mask_type)
                assert pairs_of(rect) == expected and rect.area() == len(expected)
                assert rect.is_valid() and rect.get_valid_or_none() is rect
                assert AttnRectangle(q, k, mask_type=mask_type.to_int_type()) == rect

    def test_band_and_type_hold_at_once(self, rng):
        for _ in range(100):
            _, pairs = random_rectangle(rng)
            if not pairs:
                continue
            q, k = random_range(rng), random_range(rng)
            band = AttnRange(rng.randint(-9, 0), rng.randint(0, 9))
            for mask_type in TYPES:
                expected = {
                    p for p in visible(q, k, mask_type) if band.start <= p[1] - p[0] <= band.end
                }
                if expected:
                    assert pairs_of(AttnRectangle(q, k, band, mask_type)) == expected

    def test_wrong_types(self):
        q = AttnRange(0, 4)
        for wrong, error in (("causal", TypeError), (4, ValueError)):
            with pytest.raises(error):
                AttnRectangle(q, q, mask_type=wrong)

    def test_shrinks_to_what_holds_a_pair(self, rng):
        for _ in range(200):
            rect, pairs = random_rectangle(rng)
            assert pairs_of(rect) == pairs
            if pairs:
                assert rect.area() == len(pairs)
                queries, keys = {i for i, _ in pairs}, {j for _, j in pairs}
                band = {j - i for i, j in pairs}
                assert rect.q_range == AttnRange(min(queries), max(queries) + 1)
                assert rect.k_range == AttnRange(min(keys), max(keys) + 1)
                assert rect.d_range == AttnRange(min(band), max(band))

    def test_changed_in_place_to_nothing(self):
        rect = AttnRectangle(AttnRange(0, 10), AttnRange(0, 20), AttnRange(-5, 5))
        rect.q_range.start, rect.q_range.end = 10, 0
        assert not rect.is_valid() and rect.get_valid_or_none() is None and rect.area() == 0
        with pytest.raises(ValueError, match=r"q_range is .*non-empty"):
            rect.check_valid()

    def test_counts_half_open_ranges_under_a_closed_band(self, rng):
        rect = AttnRectangle(AttnRange(0, 1), AttnRange(0, 1))
        for _ in range(200):
            q, k = random_range(rng), random_range(rng)
            low = rng.randint(-18, 18)
            high = rng.randint(low, 18)
            pairs = [(i, j) for i in range(*q.to_naive_range()) for j in range(*k.to_naive_range())]
            expected = sum(low <= j - i <= high for i, j in pairs)
            assert rect.count_areas(q.start, q.end, k.start, k.end, low, high) == expected

    def test_cuts_and_segments(self, rng):
        for _ in range(200):
            rect, pairs = random_rectangle(rng)
            if not pairs:
                continue
            cut = rng.randint(0, 16)
            left, right = rect.cut_q(cut)
            assert pairs_of(left) == {p for p in pairs if p[0] < cut}
            assert pairs_of(right) == {p for p in pairs if p[0] >= cut}
            left, right = rect.cut_k(cut)
            assert pairs_of(left) == {p for p in pairs if p[1] < cut}
            assert pairs_of(right) == {p for p in pairs if p[1] >= cut}
            assert pairs_of(rect.get_rect_within_q_segment(3, 9)) == {
                p for p in pairs if 3 <= p[0] < 9
            }
            assert pairs_of(rect.get_rect_within_k_segment(3, 9)) == {
                p for p in pairs if 3 <= p[1] < 9
            }

    def test_becomes_at_most_three_slices(self, rng):
        for _ in range(400):
            rect, pairs = random_rectangle(rng)
            if not pairs:
                continue
            slices = rect.to_qk_range_mask_type()
            found = [visible(q, k, AttnMaskType.from_int_type(kind)) for q, k, kind in slices]
            assert len(slices) <= 3 and sum(map(len, found)) == len(pairs)
            assert set().union(*found) == pairs

    def test_type_predicates(self):
        q, k = AttnRange(2, 8), AttnRange(1, 12)
        assert AttnRectangle(q, k).is_full()
        assert AttnRectangle(q, k, mask_type=AttnMaskType.CAUSAL).is_causal()
        assert AttnRectangle(q, k, mask_type=AttnMaskType.INVCAUSAL).is_inv_causal()
        assert AttnRectangle(q, k, mask_type=AttnMaskType.BICAUSAL).is_bi_causal()
        assert not AttnRectangle(q, k, mask_type=AttnMaskType.BICAUSAL).is_full()

    def test_boundaries_and_setters(self):
        rect = AttnRectangle(AttnRange(0, 10), AttnRange(0, 20), AttnRange(-5, 5))
        assert rect.k_range == AttnRange(0, 15) and len(rect) == 1
        assert rect.intersection_q_id_on_left_boundary() == 5
        assert rect.intersection_q_id_on_right_boundary() == 9
        rect.q_range, rect.k_range, rect.d_range = (AttnRange(5, 15),) * 3
        assert (rect.q_range, rect.k_range, rect.d_range) == (AttnRange(5, 15),) * 3
        reversed_range = AttnRange(0, 0)
        reversed_range.start = 10
        for name in ("q_range", "k_range", "d_range"):
            with pytest.raises(ValueError, match=name):
                setattr(rect, name, reversed_range)
        with pytest.raises(ValueError, match="k_range"):
            rect.k_range = AttnRange(3, 3)

    def test_is_a_value(self):
        rect = AttnRectangle(AttnRange(0, 9), AttnRange(0, 9), AttnRange(-2, 2))
        clone = rect.clone()
        assert rect == clone and hash(rect) == hash(clone) and "x" in repr(rect)
        clone.q_range = AttnRange(1, 9)
        assert rect != clone and rect.q_range == AttnRange(0, 9)

    def test_does_not_share_the_ranges_given(self):
        q = AttnRange(0, 4)
        rect = AttnRectangle(q, AttnRange(0, 4))
        q.end = 2
        assert rect.q_range == AttnRange(0, 4)


class TestAttnRectangles:
    def make(self, rng, count=4):
        made = [random_rectangle(rng) for _ in range(count)]
        rects = AttnRectangles()
        for rect, pairs in made:
            if pairs:
                rects.append(rect, check=True)
        return rects, [pairs for _, pairs in made if pairs]

    def test_sums_and_unions(self, rng):
        for _ in range(50):
            rects, pairs = self.make(rng)
            assert rects.area() == sum(map(len, pairs))
            assert rects.total_seqlen_qo() == len({i for p in pairs for i, _ in p})
            assert rects.total_seqlen_kv() == len({j for p in pairs for _, j in p})
            for cut in (rects.cut_q, rects.cut_k):
                left, right = cut(7)
                assert left.area() + right.area() == rects.area()
            assert rects.get_rects_within_q_segment(0, 16).area() == rects.area()
            assert rects.get_rects_within_k_segment(16, 20).is_empty()

    def test_bidirectional_areas_add_up(self):
        q, k = AttnRanges.from_ranges([(0, 3), (3, 6)]), AttnRanges.from_ranges([(0, 5), (0, 4)])
        rects = AttnRectangles.from_ranges(q, k, [3, 3])
        assert rects.area() == 3 * 3 + 2 * 3

    def test_from_ranges(self):
        rects = AttnRectangles.from_ranges([(0, 5)] * 4, [(0, 10)] * 4, [0, 1, 2, 3])
        assert len(rects) == rects.size == 4 and rects.is_valid()
        hidden = ([(0, 5)], [(0, 2)], [AttnMaskType.BICAUSAL])
        assert AttnRectangles.from_ranges(*hidden, check=True).is_empty()
        assert AttnRectangles.from_ranges([(3, 3), (0, 2)], [(0, 9), (4, 4)], [0, 1]).is_empty()
        with pytest.raises(ValueError, match="equal numbers"):
            AttnRectangles.from_ranges([(0, 1)], [(0, 1)], [0, 1])

    def test_is_a_list_value(self, rng):
        rects, _ = self.make(rng, count=20)
        other = AttnRectangles()
        other.extend(rects, check=True)
        assert other == rects and hash(other) == hash(rects) and len(repr(rects)) > 1
        assert repr(AttnRectangles()) == "[-1, -1) x [-1, -1): None"
        other[0] = AttnRectangle(AttnRange(0, 1), AttnRange(0, 1))
        other[1:2] = other[0:1]
        assert other[1] == other[0] and next(iter(other)) == other[0]
        with pytest.raises(AssertionError, match="as many as the slice"):
            other[0:1] = other[0:2]


class TestAttnMask:
    def test_from_ranges_of_all_types(self, rng):
        for _ in range(30):
            q = AttnRanges.from_ranges([random_range(rng) for _ in range(4)])
            k = AttnRanges.from_ranges([random_range(rng) for _ in range(4)])
            types = [rng.choice(TYPES) for _ in range(4)]
            mask = AttnMask.from_ranges(q, k, types, 16, 16)
            expected = set().union(*(visible(*t) for t in zip(q, k, types)))
            seen = torch.tensor(mask.mask_flag_array).nonzero().tolist()
            assert set(map(tuple, seen)) == expected
            assert mask.area == len(expected) and mask.is_empty() == (not expected)
            sub_q, sub_k = random_range(rng), random_range(rng)
            inside = [
                p
                for p in expected
                if sub_q.start <= p[0] < sub_q.end and sub_k.start <= p[1] < sub_k.end
            ]
            assert mask.calc_sub_area(sub_q, sub_k) == len(inside)

    def test_from_mask_gives_back_rows_of_one_run(self):
        q = AttnRanges.from_ranges([(0, 3), (3, 5), (5, 8), (8, 9), (9, 14), (14, 16)])
        k = AttnRanges.from_ranges([(0, 4), (2, 4), (3, 7), (4, 12), (6, 9), (1, 13)])
        causal, full = AttnMaskType.CAUSAL, AttnMaskType.FULL
        types = [causal, causal, full, full, causal, causal]
        mask = AttnMask.from_ranges(q, k, types, 16, 16)
        again = AttnMask.from_mask(mask.mask_flag_array)
        assert again == mask and again.is_square()
        assert (again.q_ranges, again.k_ranges, again.attn_mask_type) == (q, k, types)
        assert [t[2] for t in again.tuples()] == types

    @pytest.mark.parametrize(
        "matrix", [[[1], [1], [0]], [[0], [0]], [[1, 0], [0, 0], [0, 0], [0, 1]], [[0, 1], [0, 0]]]
    )
    def test_from_mask_with_empty_rows(self, matrix):
        mask = AttnMask.from_mask(matrix)
        assert mask.mask_flag_array.tolist() == matrix
        assert (mask.total_seqlen_q, mask.total_seqlen_k) == (len(matrix), len(matrix[0]))
        rows, keys = AttnRange(len(matrix) - 1, len(matrix)), AttnRange(0, 1)
        assert mask.make_sub_mask(rows, keys).area == matrix[-1][0]

    def test_sub_masks(self):
        q = AttnRanges.from_ranges([(0, 6), (6, 9), (9, 12), (12, 16)])
        k = AttnRanges.from_ranges([(0, 4), (4, 12), (12, 15), (1, 13)])
        causal, full = AttnMaskType.CAUSAL, AttnMaskType.FULL
        mask = AttnMask.from_ranges(q, k, [causal, full, causal, causal], 16, 16)
        assert mask.area == 82
        sub = mask.make_sub_mask(AttnRange(5, 16), AttnRange(3, 11))
        assert sub.area == 53
        assert sub.q_ranges.to_naive_ranges() == [(0, 1), (1, 4), (4, 7), (7, 9), (9, 11)]
        assert sub.attn_mask_type == [full, full, causal, causal, full]

    def test_predicates(self):
        q = AttnRanges.from_ranges([(0, 3), (3, 8)])
        full, causal = [AttnMaskType.FULL] * 2, [AttnMaskType.CAUSAL] * 2
        tiled = AttnRanges.from_ranges([(0, 2), (2, 8)])
        gap = AttnRanges.from_ranges([(0, 2), (3, 8)])
        assert AttnMask.from_ranges(q, tiled, full).is_varlen_full()
        assert not AttnMask.from_ranges(q, gap, full).is_varlen_full()
        assert AttnMask.from_ranges(q, tiled, causal).is_varlen_causal()
        assert not AttnMask.from_ranges(q, tiled, full).is_varlen_causal()
        every = AttnRanges.from_ranges([(0, 8), (0, 8)])
        assert AttnMask.from_ranges(q, every, full).is_pure_full()
        growing = AttnRanges.from_ranges([(0, 3), (0, 8)])
        assert AttnMask.from_ranges(q, growing, causal).is_pure_causal()
        assert not AttnMask.from_ranges(q, every, causal).is_pure_causal()

    def test_causal_matrices(self):
        top = AttnMask.make_causal_mask(3, 2, align="top-left")
        bottom = AttnMask.make_causal_mask(3, 2, dtype=torch.bool)
        assert top.tolist() == [[1, 0], [1, 1], [1, 1]]
        assert bottom.tolist() == [[False, False], [True, False], [True, True]]
        with pytest.raises(ValueError, match="align"):
            AttnMask.make_causal_mask(3, 2, align="middle")

    def test_errors(self):
        one = AttnRanges.from_ranges([(0, 4)])
        with pytest.raises(RuntimeError, match="from_ranges"):
            AttnMask(torch.zeros(4, 4, 1), one, one, [AttnMaskType.FULL], 4, 4)
        with pytest.raises(ValueError, match="equal numbers"):
            AttnMask.from_ranges(one, one, [])
        with pytest.raises(ValueError, match="q range"):
            AttnMask.from_ranges(one, one, [AttnMaskType.FULL], 3, 4)
        with pytest.raises(ValueError, match="attn_mask_type holds 'full'; allowed: AttnMaskType"):
            AttnMask.from_ranges(one, one, ["full"])
        with pytest.raises(ValueError, match="axes"):
            AttnMask.from_mask(torch.zeros(4))

    def test_prints_as_text(self, capsys):
        one = AttnRanges.from_ranges([(0, 2)])
        AttnMask.from_ranges(one, one, [AttnMaskType.CAUSAL]).visualize()
        assert capsys.readouterr().out == "#.\n##\n"
