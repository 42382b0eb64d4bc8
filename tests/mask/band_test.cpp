// SPDX-License-Identifier: Apache-2.0
#include "magi/band.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "magi/error.hpp"
#include "support/random_mask.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

namespace magi::testing {
namespace {

/// Rows of the slice's own rectangle as strings of 0 and 1, as the API reference prints them.
std::vector<std::string> picture(std::int32_t rows_q, std::int32_t rows_k, MaskType type) {
  const std::vector<int> counts =
      dense_counts(band_slice({0, rows_q}, {0, rows_k}, type), rows_q, rows_k);
  std::vector<std::string> rows;
  for (std::int32_t i = 0; i < rows_q; ++i) {
    rows.emplace_back();
    for (std::int32_t j = 0; j < rows_k; ++j) {
      rows.back() += counts[static_cast<std::size_t>(i * rows_k + j)] != 0 ? '1' : '0';
    }
  }
  return rows;
}

using Rows = std::vector<std::string>;

TEST(BandTypes, ExamplesOfTheReference) {
  EXPECT_EQ(picture(5, 2, MaskType::Full), Rows({"11", "11", "11", "11", "11"}));
  EXPECT_EQ(picture(2, 5, MaskType::Full), Rows({"11111", "11111"}));
  EXPECT_EQ(picture(5, 5, MaskType::Full), Rows({"11111", "11111", "11111", "11111", "11111"}));

  EXPECT_EQ(picture(5, 2, MaskType::Causal), Rows({"00", "00", "00", "10", "11"}));
  EXPECT_EQ(picture(2, 5, MaskType::Causal), Rows({"11110", "11111"}));
  EXPECT_EQ(picture(5, 5, MaskType::Causal), Rows({"10000", "11000", "11100", "11110", "11111"}));

  EXPECT_EQ(picture(5, 2, MaskType::InverseCausal), Rows({"11", "01", "00", "00", "00"}));
  EXPECT_EQ(picture(2, 5, MaskType::InverseCausal), Rows({"11111", "01111"}));
  EXPECT_EQ(picture(5, 5, MaskType::InverseCausal),
            Rows({"11111", "01111", "00111", "00011", "00001"}));

  EXPECT_EQ(picture(5, 2, MaskType::BidirectionalCausal), Rows({"00", "00", "00", "00", "00"}));
  EXPECT_EQ(picture(2, 5, MaskType::BidirectionalCausal), Rows({"11110", "01111"}));
  EXPECT_EQ(picture(5, 5, MaskType::BidirectionalCausal),
            Rows({"10000", "01000", "00100", "00010", "00001"}));
}

TEST(BandTypes, AreasOfTheFourTypesMatchTheirFormulas) {
  for (std::int64_t sq = 1; sq <= 9; ++sq) {
    for (std::int64_t sk = 1; sk <= 9; ++sk) {
      const Range q{3, static_cast<std::int32_t>(3 + sq)};
      const Range k{5, static_cast<std::int32_t>(5 + sk)};
      const std::int64_t causal = sk > sq ? (2 * sk - sq + 1) * sq / 2 : (1 + sk) * sk / 2;
      EXPECT_EQ(area(band_slice(q, k, MaskType::Full)), sq * sk);
      EXPECT_EQ(area(band_slice(q, k, MaskType::Causal)), causal);
      EXPECT_EQ(area(band_slice(q, k, MaskType::InverseCausal)), causal);
      EXPECT_EQ(area(band_slice(q, k, MaskType::BidirectionalCausal)),
                sq > sk ? 0 : (sk - sq + 1) * sq);
    }
  }
}

TEST(BandTypes, HaveNames) {
  EXPECT_EQ(mask_type_name(MaskType::Full), "full");
  EXPECT_EQ(mask_type_name(MaskType::BidirectionalCausal), "bi_causal");
  EXPECT_THROW(mask_type_name(static_cast<MaskType>(4)), InvalidArgument);
}

TEST(BandTypes, BadRangesAreNamed) {
  const Range good{0, 4};
  for (const Range bad : {Range{-1, 4}, Range{3, 2}, Range{0, kBandInfinity}}) {
    EXPECT_THROW(band_slice(bad, good, MaskType::Full), InvalidArgument);
    EXPECT_THROW(band_slice(good, bad, MaskType::Full), InvalidArgument);
  }
  EXPECT_THROW(band_slice(good, good, static_cast<MaskType>(7)), InvalidArgument);
  EXPECT_EQ(refusal_of([&] {
              band_slice(good, {3, 2}, MaskType::Causal);
            }),
            "k range is 3:2; allowed: 0 <= begin <= end <= 1073741823");
}

/// Calls `check(slice, rows_q, rows_k, random)` on thousands of small random slices.
template <typename Check>
void for_random_slices(std::uint64_t seed, Check check) {
  RandomStream random(seed);
  for (int n = 0; n < 6000; ++n) {
    const std::int32_t rows_q = random.between(0, 20);
    const std::int32_t rows_k = random.between(0, 20);
    const BandSlice slice = random_slice(random, rows_q, rows_k, {});
    SCOPED_TRACE("seed " + std::to_string(seed) + " case " + std::to_string(n) + " slice " +
                 describe(slice));
    check(slice, rows_q, rows_k, random);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(BandRandom, AreaEqualsTheCountOfPairs) {
  for_random_slices(11, [](const BandSlice& slice, auto rows_q, auto rows_k, auto&) {
    const std::vector<int> counts = dense_counts(slice, rows_q, rows_k);
    EXPECT_EQ(area(slice), std::accumulate(counts.begin(), counts.end(), 0));
  });
}

TEST(BandRandom, VisibleRowsAreTheTrueOnesOfTheDenseMask) {
  for_random_slices(12, [](const BandSlice& slice, auto rows_q, auto rows_k, auto&) {
    for (std::int32_t i = -2; i < rows_q + 2; ++i) {
      const Range keys = visible_keys(slice, i);
      EXPECT_TRUE(!keys.empty() || keys == Range{});
      for (std::int32_t j = -2; j < rows_k + 2; ++j) {
        EXPECT_EQ(j >= keys.begin && j < keys.end, sees(slice, i, j));
      }
    }
  });
}

TEST(BandRandom, CutsKeepExactlyThePairsInside) {
  for_random_slices(13, [](const BandSlice& slice, auto rows_q, auto rows_k, auto& random) {
    const std::int32_t a = random.between(-3, 23);
    const Range range{a, random.between(-3, 23)};  // reversed half the time: nothing remains
    const BandSlice by_q = cut_q(slice, range);
    const BandSlice by_k = cut_k(slice, range);
    for (const BandSlice& cut : {by_q, by_k}) {
      EXPECT_TRUE(slice.q0 <= cut.q0 && cut.q0 <= cut.q1 && cut.q1 <= slice.q1) << describe(cut);
      EXPECT_TRUE(slice.k0 <= cut.k0 && cut.k0 <= cut.k1 && cut.k1 <= slice.k1) << describe(cut);
    }
    for (std::int32_t i = 0; i < rows_q; ++i) {
      for (std::int32_t j = 0; j < rows_k; ++j) {
        const bool is_seen = sees(slice, i, j);
        EXPECT_EQ(sees(by_q, i, j), is_seen && i >= range.begin && i < range.end);
        EXPECT_EQ(sees(by_k, i, j), is_seen && j >= range.begin && j < range.end);
      }
    }
  });
}

TEST(BandRandom, ShrinkIsTightAndCanonical) {
  for_random_slices(14, [](const BandSlice& slice, auto rows_q, auto rows_k, auto&) {
    const BandSlice tight = shrink(slice);
    EXPECT_EQ(dense_counts(tight, rows_q, rows_k), dense_counts(slice, rows_q, rows_k));
    EXPECT_EQ(shrink(tight), tight);
    if (area(slice) == 0) {
      EXPECT_EQ(tight, BandSlice{});
      return;
    }
    for (std::int32_t i = tight.q0; i < tight.q1; ++i) {
      EXPECT_FALSE(visible_keys(tight, i).empty()) << "row " << i;
    }
    for (std::int32_t j = tight.k0; j < tight.k1; ++j) {
      EXPECT_GT(area(cut_k(tight, {j, j + 1})), 0) << "key " << j;
    }
    BandSlice wider = tight;
    wider.d_min = -kBandInfinity;
    EXPECT_EQ(tight.d_min == -kBandInfinity, area(wider) == area(tight));
    wider = tight;
    wider.d_max = kBandInfinity;
    EXPECT_EQ(tight.d_max == kBandInfinity, area(wider) == area(tight));
  });
}

TEST(BandRandom, ShiftMovesEveryPair) {
  for_random_slices(15, [](const BandSlice& slice, auto rows_q, auto rows_k, auto& random) {
    const std::int32_t dq = random.between(0, 1 << 20);
    const std::int32_t dk = random.between(0, 1 << 20);
    const BandSlice moved = shift(slice, dq, dk);
    for (std::int32_t i = 0; i < rows_q; ++i) {
      for (std::int32_t j = 0; j < rows_k; ++j) {
        EXPECT_EQ(sees(moved, i + dq, j + dk), sees(slice, i, j));
      }
    }
    EXPECT_EQ(shift(moved, -dq, -dk), slice);
  });
}

TEST(BandRandom, TypedPiecesHoldTheSamePairs) {
  for_random_slices(16, [](const BandSlice& slice, auto rows_q, auto rows_k, auto&) {
    const std::vector<TypedSlice> pieces = to_typed(slice);
    EXPECT_LE(pieces.size(), 3u);
    Mask typed{rows_q, rows_k, {}};
    std::int32_t end = 0;
    for (const TypedSlice& piece : pieces) {
      EXPECT_GE(piece.q.begin, end);
      EXPECT_FALSE(piece.q.empty());
      end = piece.q.end;
      typed.slices.push_back(band_slice(piece.q, piece.k, piece.type));
    }
    EXPECT_EQ(dense_counts(typed), dense_counts(slice, rows_q, rows_k));
  });
}

TEST(BandRandom, ATypedSliceStaysOneTypedSlice) {
  RandomMaskOptions options;
  options.has_free_bands = false;
  for (RandomStream& random : RandomStreams(4000)) {
    const BandSlice slice = random_slice(random, 20, 20, options);
    const std::size_t allowed = area(slice) == 0 ? 0 : 1;
    EXPECT_EQ(to_typed(slice).size(), allowed) << describe(slice);
  }
}

TEST(BandTyped, AWindowIsCausalThenBothThenInverse) {
  const BandSlice window{5, 15, 5, 15, -2, 3};
  const std::vector<TypedSlice> expected = {{{5, 7}, {5, 10}, MaskType::Causal},
                                            {{7, 12}, {5, 15}, MaskType::BidirectionalCausal},
                                            {{12, 15}, {10, 15}, MaskType::InverseCausal}};
  EXPECT_EQ(to_typed(window), expected);
}

__extension__ using Int128 = __int128;

/// Row lengths summed in 128 bits as a series of trapezoids, without the closed form of area().
Int128 area_by_rows(const BandSlice& s, std::int64_t step) {
  // Exact where the row length is linear on [i, i + step): the caller aligns bends to `step`.
  Int128 total = 0;
  const auto length = [&](std::int64_t i) {
    const std::int64_t low = std::max<std::int64_t>(s.k0, i + s.d_min);
    const std::int64_t high = std::min<std::int64_t>(s.k1, i + s.d_max + 1);
    return std::max<std::int64_t>(high - low, 0);
  };
  for (std::int64_t i = s.q0; i < s.q1; i += step) {
    const std::int64_t rows = std::min<std::int64_t>(step, s.q1 - i);
    total += static_cast<Int128>(length(i) + length(i + rows - 1)) * rows;
  }
  return total / 2;
}

TEST(BandHuge, AreaIsExactUpToTheLargestRowCount) {
  const std::int32_t n = kMaxRows;
  EXPECT_EQ(area(BandSlice{0, n, 0, n}), std::int64_t{n} * n);
  EXPECT_EQ(area(band_slice({0, n}, {0, n}, MaskType::Causal)), std::int64_t{n} * (n + 1LL) / 2);
  EXPECT_EQ(area(band_slice({0, n}, {0, n}, MaskType::BidirectionalCausal)), n);
  EXPECT_EQ(area(BandSlice{0, n, 0, n, -n, -n}), 0);
  EXPECT_EQ(area(BandSlice{0, n, 0, n, kBandInfinity, kBandInfinity}), 0);
  EXPECT_EQ(area(BandSlice{0, n, 0, n, -kBandInfinity, -kBandInfinity}), 0);
  EXPECT_EQ(area(BandSlice{0, n, 0, n, n - 1, kBandInfinity}), 1);
  EXPECT_EQ(area(BandSlice{0, n, 0, n, -kBandInfinity, -(n - 1)}), 1);
}

TEST(BandHuge, AreaEqualsAnIndependentSeriesIn128Bits) {
  // All bends lie on multiples of 2^18, between which row lengths are linear: 4096 terms are exact.
  constexpr std::int32_t kStep = 1 << 18;
  for (RandomStream& random : RandomStreams(400)) {
    const auto grid = [&] { return random.between(0, 4095) * kStep; };
    const std::int32_t q[2] = {grid(), grid()};
    const std::int32_t k[2] = {grid(), grid()};
    BandSlice slice{std::min(q[0], q[1]), std::max(q[0], q[1]), std::min(k[0], k[1]),
                    std::max(k[0], k[1])};
    if (random.chance(70)) slice.d_min = grid() - grid();
    if (random.chance(70)) slice.d_max = grid() - grid() - 1;
    EXPECT_TRUE(static_cast<Int128>(area(slice)) == area_by_rows(slice, kStep))
        << describe(slice) << " area " << area(slice);
  }
}

TEST(BandHuge, CutsAddUp) {
  for (RandomStream& random : RandomStreams(2000)) {
    BandSlice slice = random_slice(random, kMaxRows, kMaxRows, {.has_free_bands = false});
    if (random.chance(50)) slice.d_min = random.between(-kMaxRows, kMaxRows);
    if (random.chance(50)) slice.d_max = random.between(-kMaxRows, kMaxRows);
    const std::int32_t at = random.between(0, kMaxRows);
    SCOPED_TRACE(describe(slice));
    EXPECT_EQ(area(cut_q(slice, {0, at})) + area(cut_q(slice, {at, kMaxRows})), area(slice));
    EXPECT_EQ(area(cut_k(slice, {0, at})) + area(cut_k(slice, {at, kMaxRows})), area(slice));
    EXPECT_EQ(area(shrink(slice)), area(slice));
    std::int64_t typed = 0;
    for (const TypedSlice& t : to_typed(slice)) typed += area(band_slice(t.q, t.k, t.type));
    EXPECT_EQ(typed, area(slice));
  }
}

TEST(BandHuge, ExtremeRowsAndDiagonalsDoNotOverflow) {
  const std::int32_t last = kMaxRows - 1;
  const BandSlice corner{last, kMaxRows, last, kMaxRows, kBandInfinity, kBandInfinity};
  EXPECT_EQ(visible_keys(corner, last), Range{});
  const BandSlice full{0, kMaxRows, 0, kMaxRows};
  EXPECT_EQ(visible_keys(full, last), (Range{0, kMaxRows}));
  const BandSlice diagonal{0, 1, 0, 1, 0, 0};
  EXPECT_EQ(shift(shift(diagonal, last, 0), 0, last),
            (BandSlice{last, kMaxRows, last, kMaxRows, 0, 0}));
  // A finite bound that leaves the range of diagonals on the way decides no pair there.
  const BandSlice loose{0, 1, 0, 1, -5, kMaxRows};
  EXPECT_EQ(area(shift(loose, 0, last)), 1);
}

TEST(BandEdges, EmptyAndOneTokenSlices) {
  EXPECT_EQ(area(BandSlice{}), 0);
  EXPECT_TRUE(to_typed(BandSlice{}).empty());
  EXPECT_EQ(shrink(BandSlice{3, 3, 1, 5}), BandSlice{});
  EXPECT_EQ(shrink(BandSlice{3, 6, 5, 5}), BandSlice{});
  EXPECT_EQ(shrink(BandSlice{0, 4, 0, 4, 2, 1}), BandSlice{});
  const BandSlice one{4, 5, 7, 8, 3, 3};
  EXPECT_EQ(area(one), 1);
  EXPECT_EQ(shrink(one), (BandSlice{4, 5, 7, 8}));
  EXPECT_EQ(to_typed(one), (std::vector<TypedSlice>{{{4, 5}, {7, 8}, MaskType::Full}}));
}

}  // namespace
}  // namespace magi::testing
