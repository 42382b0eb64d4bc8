// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/plain_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/schedule/backward_problem.hpp"
#include "kernels/schedule/expand_backward_list.hpp"
#include "kernels/schedule/item_walk.hpp"
#include "magi/error.hpp"
#include "mask/random_mask.hpp"
#include "support/masks.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

BackwardList plain_list(const BackwardProblem& problem, const Mask& mask,
                        const BackwardTileShape& shape) {
  return build_backward_list(problem, mask.slices, shape, {.is_plain = true});
}

/// The slice's pairs on the first of its diagonals that is known to hold one.
BandSlice with_one_diagonal(BandSlice slice) {
  slice.d_min = slice.d_max = slice.k0 - slice.q0;
  return slice;
}

TEST(PlainListTest, CountsEveryPairAsOftenAsTheMaskInOrder) {
  for (RandomStream& random : testing::RandomStreams(2000)) {
    const Mask mask = random_mask(random);
    const BackwardProblem problem = problem_of(mask, 2 << random.between(0, 3), 2);
    BackwardTileShape shape = random_shape(random);
    shape.rows = std::max(shape.rows, 16);
    const BackwardList list = plain_list(problem, mask, shape);
    ASSERT_TRUE(list.is_ordered);
    ASSERT_TRUE(is_list_of(list, mask));
    ASSERT_TRUE(walks_everything_once(list));
  }
}

/// As lists made on the device have room for.
TEST(PlainListTest, HasNoMoreComponentsThanThereIsRoomFor) {
  for (RandomStream& random : testing::RandomStreams(500)) {
    Mask mask = random_mask(random);
    const bool has_single_diagonals = random.chance(50);
    for (BandSlice& slice : mask.slices) {
      if (has_single_diagonals) slice = shrink(with_one_diagonal(slice));
    }
    const BackwardProblem problem = problem_of(mask, 4, 2);
    const BackwardList list = plain_list(problem, mask, random_shape(random));
    ASSERT_LE(list.num_components,
              most_plain_components(problem, std::ssize(mask.slices), std::ssize(list.tiles)));
  }
}

TEST(PlainListTest, PacksHeadsIfSlicesAreShort) {
  const auto packed = [](std::int32_t heads_per_kv, std::int64_t num_slices) {
    return plain_packed_heads({.rows_k = 8192, .heads_q = heads_per_kv, .heads_kv = 1}, num_slices);
  };
  for (const std::int64_t few : {0, 1, 5}) EXPECT_EQ(packed(8, few), 1);
  EXPECT_EQ(packed(8, 6), 4);
  EXPECT_EQ(packed(48, 100), 4);
  EXPECT_EQ(packed(6, 100), 2);
  EXPECT_EQ(packed(4, 100), 2);
  EXPECT_EQ(packed(2, 100), 1);
  EXPECT_EQ(packed(1, 100), 1);
}

/// One slice of a mask, 64:8 heads, where nobody asks for equal bits.
BackwardList fast_list(std::int32_t rows, const std::vector<BandSlice>& slices) {
  BackwardProblem problem{.rows_q = rows, .rows_k = rows, .heads_q = 64, .heads_kv = 8};
  return build_backward_list(problem, slices, {}, {.is_deterministic = false, .is_plain = true});
}

TEST(PlainListTest, SplitsUnevenAndGlobalTilesAndOrdersNarrowMasks) {
  constexpr std::int32_t kRows = 8192;
  const auto splits_of = [](const BackwardList& list) {
    std::vector<std::int32_t> splits;  // the tail's last
    for (const TileSpan& span : list.spans) splits.push_back(span.num_splits);
    return splits;
  };
  using Splits = std::vector<std::int32_t>;
  const Range all{0, kRows};
  const BackwardList full = fast_list(kRows, {band_slice(all, all, MaskType::Full)});
  EXPECT_EQ(splits_of(full), (Splits{1, 1}));
  EXPECT_FALSE(full.is_ordered);
  const BackwardList causal = fast_list(kRows, {band_slice(all, all, MaskType::Causal)});
  EXPECT_EQ(splits_of(causal), (Splits{4, 4, 2, 1}));
  EXPECT_FALSE(causal.is_ordered);
  BandSlice window = band_slice(all, all, MaskType::Causal);
  window.d_min = -1023;
  const BackwardList narrow = fast_list(kRows, {window});
  EXPECT_EQ(splits_of(narrow), (Splits{1, 1}));
  EXPECT_TRUE(narrow.is_ordered && narrow.is_converting && narrow.is_group_first);
  window.q0 = window.k0 = 128;
  const BackwardList global =
      fast_list(kRows, {band_slice({0, 128}, all, MaskType::Full),
                        band_slice({128, kRows}, {0, 128}, MaskType::Full), window});
  EXPECT_EQ(splits_of(global), (Splits{8, 1, 1}));
  EXPECT_TRUE(global.is_ordered && global.is_converting);
}

TEST(PlainListTest, CutsTheKeysWhereDocumentsBeginIfThatCostsLess) {
  const Mask cut = testing::document_mask({600, 650, 700});
  const BackwardList list = plain_list(problem_of(cut, 8, 1), cut, {});
  const auto begins_at = [&](std::int32_t key) {
    return std::ranges::any_of(list.tiles, [&](const KeyTile& t) { return t.key_begin == key; });
  };
  EXPECT_TRUE(begins_at(600) && begins_at(1250));
  // Single rows, of which a plain k tile holds many.
  const Mask rows = testing::document_mask(std::vector<std::int32_t>(500, 1));
  EXPECT_EQ(plain_list(problem_of(rows, 8, 1), rows, {}).tiles.size(), 4u);
}

/// In front of the tail, k tiles of a document lie side by side, long documents first.
TEST(PlainListTest, DocumentsLieTogetherInFrontOfTheTail) {
  const Mask mask = testing::document_mask({3000, 5000, 4000, 5000});
  BackwardProblem problem = problem_of(mask, 2, 2);
  problem.num_ctas = 4;
  const BackwardList list = plain_list(problem, mask, {});
  ASSERT_EQ(list.spans.size(), 2u);
  EXPECT_EQ(list.spans.back().section_heads, problem.heads_kv);
  std::vector<std::size_t> documents_seen;
  for (std::int32_t i = 0; i < list.spans.front().num_tiles; ++i) {
    const std::int32_t key = list.tiles[static_cast<std::size_t>(i)].key_begin;
    const auto document = static_cast<std::size_t>(
        std::ranges::count_if(mask.slices, [&](const BandSlice& s) { return s.k0 <= key; }));
    if (documents_seen.empty() || documents_seen.back() != document) {
      documents_seen.push_back(document);
    }
  }
  EXPECT_EQ(documents_seen, (std::vector<std::size_t>{2, 4, 3, 1}));
}

TEST(PlainListTest, EvenListsOfManyHeadsHaveFewSideBySide) {
  const auto section_heads = [](std::int32_t rows, std::int32_t heads_q, std::int32_t heads_kv) {
    const Mask mask{rows, rows, {band_slice({0, rows}, {0, rows}, MaskType::Full)}};
    BackwardProblem problem = problem_of(mask, heads_q, heads_kv);
    problem.num_ctas = 132;
    return plain_list(problem, mask, {}).spans.front().section_heads;
  };
  EXPECT_EQ(section_heads(16384, 128, 128), 2);
  EXPECT_EQ(section_heads(16384, 63, 63), 3);  // a divisor
  EXPECT_EQ(section_heads(16384, 256, 128), 16);
  EXPECT_EQ(section_heads(16384, 64, 8), 8);
  EXPECT_EQ(section_heads(1024, 128, 128), 64);  // few k tiles
}

TEST(PlainListTest, HasNoOtherChoice) {
  const Mask mask = testing::document_mask({300, 200});
  const auto refuses = [&](BackwardProblem problem, BackwardChoice choice) {
    choice.is_plain = true;
    EXPECT_THROW(build_backward_list(problem, mask.slices, {}, choice), InvalidArgument);
  };
  BackwardProblem problem = problem_of(mask, 8, 2);
  refuses(problem, {.heads_per_item = 2});
  refuses(problem, {.section_heads = 1});
  refuses(problem, {.is_group_first = true});
  refuses(problem, {.packed_heads = 3});
  problem.coming.num_sources = 1;
  refuses(problem, {});
}

TEST(PlainListTest, PlantedFaultsAreSeen) {
  const Mask mask = testing::document_mask({300, 200});
  const BackwardList good = plain_list(problem_of(mask, 2, 1), mask, {});
  ASSERT_TRUE(is_list_of(good, mask));
  BackwardList list = good;
  list.records.front().band.q1 -= 1;
  EXPECT_FALSE(is_list_of(list, mask));
  list = good;
  list.semaphore_runs.back().value += 1;
  EXPECT_FALSE(is_list_of(list, mask));
  list = good;
  list.tiles.pop_back();
  EXPECT_FALSE(is_list_of(list, mask));
}

}  // namespace
}  // namespace magi::test
