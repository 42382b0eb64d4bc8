// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/backward_schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/schedule/backward_problem.hpp"
#include "kernels/schedule/item_walk.hpp"
#include "support/masks.hpp"

namespace magi::test {
namespace {

BackwardList list_of(const Mask& mask, bool is_deterministic) {
  BackwardProblem problem = problem_of(mask, 64, 8);
  problem.num_ctas = 132;
  return build_backward_list(problem, mask.slices, {}, {.is_deterministic = is_deterministic});
}

BackwardList causal_list(std::int32_t length, const BackwardChoice& choice) {
  const Mask mask{length, length, {band_slice({0, length}, {0, length}, MaskType::Causal)}};
  BackwardProblem problem = problem_of(mask, 64, 8);
  problem.num_ctas = 132;
  return build_backward_list(problem, mask.slices, {}, choice);
}

TEST(BackwardScheduleTest, LongTilesAreSplitAndShortOnesComeLast) {
  const BackwardList list = causal_list(32768, {.packed_heads = 1, .is_deterministic = false});
  ASSERT_GT(list.spans.size(), 2u);
  EXPECT_EQ(list.spans.front().num_splits, 4);
  EXPECT_EQ(list.spans.front().section_heads, 1);
  EXPECT_EQ(list.spans.back().num_splits, 1);
  EXPECT_EQ(list.spans.back().section_heads, 8);
  for (std::size_t i = 1; i < list.tiles.size(); ++i) {
    EXPECT_GT(list.tiles[i].key_begin, list.tiles[i - 1].key_begin);
  }
}

TEST(BackwardScheduleTest, SlotsOfSplitsDoNotGrowWithTheSequence) {
  for (const bool is_deterministic : {false, true}) {
    const BackwardChoice choice{.packed_heads = 1, .is_deterministic = is_deterministic};
    const BackwardList list = causal_list(32768, choice);
    // A fraction of what dK and dV would take in float32.
    EXPECT_LT(3 * list.slot_floats(128, 128), std::int64_t{2} * 32768 * 8 * 128);
    EXPECT_LE(causal_list(1 << 19, choice).num_slots(), 4 * 132 * std::ssize(list.spans));
    EXPECT_TRUE(walks_everything_once(list));
  }
}

/// A window in two slices, as ranges have it: packed heads save a few steps of the cut.
TEST(BackwardScheduleTest, WindowsWalkedHeadByHeadPackNone) {
  constexpr std::int32_t kWindow = 1024;
  for (const std::int32_t rows : {8192, 32768}) {
    Mask mask{rows, rows, {band_slice({0, kWindow - 1}, {0, kWindow - 1}, MaskType::Causal)}};
    mask.slices.push_back({kWindow - 1, rows, 0, rows, 1 - kWindow, 0});
    const BackwardList list = list_of(mask, false);
    EXPECT_TRUE(list.is_group_first);
    EXPECT_EQ(list.packed_heads, 1);
  }
}

/// Rows of two pieces of a window: many k tiles lie at an end and are short, most steps are of long
/// ones.
TEST(BackwardScheduleTest, PiecesOfAWindowAreWalkedHeadByHead) {
  constexpr std::int32_t kOpen = kBandInfinity;
  const Mask mask{8192,
                  9727,
                  {{0, 511, 0, 511, -kOpen, 0},
                   {0, 511, 8192, 8704, -kOpen, kOpen},
                   {511, 1536, 0, 1536, -1023, 0},
                   {511, 1023, 8192, 8704, 7681, kOpen},
                   {1536, 8192, 1536, 8192, -1023, 0},
                   {1536, 2559, 8704, 9727, 7168, kOpen}}};
  const BackwardList list = list_of(mask, false);
  EXPECT_TRUE(list.is_group_first && list.is_converting);
  EXPECT_TRUE(walks_everything_once(list));
}

TEST(BackwardScheduleTest, TilesThatCostAlikeAreWalkedWhole) {
  for (const bool is_deterministic : {false, true}) {
    const Mask mask{16384, 16384, {band_slice({0, 16384}, {0, 16384}, MaskType::Full)}};
    const BackwardList list = list_of(mask, is_deterministic);
    for (const TileSpan& span : list.spans) EXPECT_EQ(span.num_splits, 1);
    EXPECT_EQ(list.spans.front().section_heads == 8, is_deterministic);
  }
}

/// With all heads side by side no two CTAs would share rows: all loads and sums would miss the
/// cache.
TEST(BackwardScheduleTest, OrderedListsOfManyHeadsHaveFewSideBySide) {
  const Mask mask{16384, 16384, {band_slice({0, 16384}, {0, 16384}, MaskType::Full)}};
  const auto section_heads = [&](const Mask& of, std::int32_t heads_q, std::int32_t heads_kv) {
    BackwardProblem problem = problem_of(of, heads_q, heads_kv);
    problem.num_ctas = 132;
    problem.cache_bytes = 1 << 20;
    const BackwardList list =
        build_backward_list(problem, of.slices, {}, {.is_deterministic = true});
    EXPECT_TRUE(walks_everything_once(list));
    return list.spans.front().section_heads;
  };
  EXPECT_EQ(section_heads(mask, 128, 128), 2);
  EXPECT_EQ(section_heads(mask, 256, 128), 16);
  // k tiles of 16 steps: 132 CTAs that begin four and a half steps apart want 36 heads.
  const Mask documents{2048,
                       2048,
                       {band_slice({0, 1024}, {0, 1024}, MaskType::Full),
                        band_slice({1024, 2048}, {1024, 2048}, MaskType::Full)}};
  EXPECT_EQ(section_heads(documents, 128, 128), 36);
}

/// Items of 4,096 steps: what lies side by side should stay in the cache.
TEST(BackwardScheduleTest, OrderedListsOfLongItemsHaveFewHeadsSideBySide) {
  const auto section_heads = [](std::int32_t length) {
    const Mask mask{length, length, {band_slice({0, length}, {0, length}, MaskType::Full)}};
    const BackwardList list = list_of(mask, true);
    EXPECT_TRUE(walks_everything_once(list));
    return list.spans.front().section_heads;
  };
  EXPECT_EQ(section_heads(32768), 2);
  EXPECT_EQ(section_heads(65536), 1);
}

TEST(BackwardScheduleTest, TheLastRoundOfWholeItemsIsFilledWithSplits) {
  // 2,048 whole items for 132 CTAs would end half a round later.
  const Mask mask{32768, 32768, {band_slice({0, 32768}, {0, 32768}, MaskType::Full)}};
  const BackwardList list = list_of(mask, false);
  ASSERT_EQ(list.spans.size(), 2u);
  EXPECT_EQ(list.spans.front().num_splits, 1);
  EXPECT_GT(list.spans.back().num_splits, 1);
  EXPECT_GT(list.spans.front().num_tiles, 8 * list.spans.back().num_tiles);
  EXPECT_TRUE(walks_everything_once(list));
}

/// Of so many steps that one counter for each would fill the memory.
TEST(BackwardScheduleTest, VeryLongListsAreArrangedInCoarseSteps) {
  constexpr std::int32_t kRows = 1 << 20;
  const Mask mask{kRows, kRows, {band_slice({0, kRows}, {0, kRows}, MaskType::Full)}};
  BackwardProblem problem = problem_of(mask, 64, 1);
  problem.num_ctas = 132;
  const BackwardList list =
      build_backward_list(problem, mask.slices, {}, {.is_deterministic = false});
  EXPECT_TRUE(walks_everything_once(list));
  EXPECT_GT(list.spans.back().num_splits, list.spans.front().num_splits);
}

TEST(BackwardScheduleTest, ChoicesApplyToAllSegments) {
  const BackwardList list = causal_list(
      8192,
      {.packed_heads = 1, .heads_per_item = 4, .section_heads = 3, .is_deterministic = false});
  ASSERT_EQ(list.spans.size(), 2u);
  for (const TileSpan& span : list.spans) {
    EXPECT_EQ(span.num_splits, 2);
    EXPECT_EQ(span.groups_per_item, 4);
  }
  EXPECT_EQ(list.spans.front().section_heads, 3);
}

TEST(BackwardScheduleTest, TilesOfADocumentStayTogether) {
  // Long documents first and last, between them one whose tiles are as long as some of theirs.
  Mask mask{16384, 16384, {}};
  for (const auto& [begin, end] : {std::pair{0, 6144}, {6144, 10240}, {10240, 16384}}) {
    mask.slices.push_back(band_slice({begin, end}, {begin, end}, MaskType::Causal));
  }
  BackwardProblem problem = problem_of(mask, 8, 8);
  problem.num_ctas = 4;
  const BackwardList list = build_backward_list(problem, mask.slices, {});
  ASSERT_EQ(list.spans.size(), 2u);
  const auto document = [](const KeyTile& work) {
    return work.key_begin < 6144 ? 0 : work.key_begin < 10240 ? 1 : 2;
  };
  int changes = 0;
  for (std::int32_t i = 1; i < list.spans.front().num_tiles; ++i) {
    const KeyTile& before = list.tiles[std::size_t(i) - 1];
    const KeyTile& work = list.tiles[std::size_t(i)];
    const bool is_same = document(before) == document(work);
    changes += is_same ? 0 : 1;
    EXPECT_TRUE(!is_same || work.key_begin > before.key_begin);
  }
  EXPECT_EQ(changes, 2);
  EXPECT_EQ(document(list.tiles.front()), 0);
}

TEST(BackwardScheduleTest, ShortListsKeepDocumentsTogetherBeforeAShortTail) {
  const Mask mask = testing::document_mask({1500, 1000, 500, 250, 1250, 750, 1750, 250, 942});
  std::vector<std::int32_t> document_of(8192);
  for (std::size_t i = 0; i < mask.slices.size(); ++i) {
    const BandSlice& slice = mask.slices[i];
    std::fill(document_of.begin() + slice.q0, document_of.begin() + slice.q1, std::int32_t(i));
  }
  ASSERT_EQ(mask.rows_q, 8192);
  const BackwardList list = list_of(mask, true);
  EXPECT_EQ(8 % list.spans.front().section_heads, 0);
  const std::int32_t num_before = list.spans.back().tile_begin;
  ASSERT_GT(num_before, 0);
  int changes = 0;
  std::int64_t keys = 0;
  for (std::int32_t i = 0; i < num_before; ++i) {
    const KeyTile& work = list.tiles[std::size_t(i)];
    keys += work.key_end - work.key_begin;
    if (i == 0) continue;
    const KeyTile& before = list.tiles[std::size_t(i) - 1];
    changes +=
        document_of[std::size_t(before.key_begin)] != document_of[std::size_t(work.key_begin)];
  }
  EXPECT_LT(changes, std::ssize(mask.slices));
  EXPECT_GT(2 * keys, 8192);
}

TEST(BackwardScheduleTest, WindowsWalkHeadByHeadInTurn) {
  const Mask window{16384, 16384, {{0, 16384, 0, 16384, -1023, 0}}};
  for (const bool is_deterministic : {false, true}) {
    const BackwardList list = list_of(window, is_deterministic);
    EXPECT_TRUE(list.is_group_first);
    EXPECT_TRUE(list.is_ordered);
    EXPECT_LT(list.spans.front().section_heads, 8);
  }
}

TEST(BackwardScheduleTest, KeysThatAllQueriesSeeStandApartFromAWindow) {
  for (const std::int32_t rows : {8192, 32768}) {
    const Mask mask{rows,
                    rows,
                    {{.q0 = 0, .q1 = 128, .k0 = 0, .k1 = rows},
                     {.q0 = 128, .q1 = rows, .k0 = 0, .k1 = 128},
                     {.q0 = 128, .q1 = rows, .k0 = 128, .k1 = rows, .d_min = -1023, .d_max = 0}}};
    for (const bool is_deterministic : {false, true}) {
      const BackwardList list = list_of(mask, is_deterministic);
      EXPECT_TRUE(list.is_group_first);
      EXPECT_TRUE(list.is_ordered);
      EXPECT_TRUE(list.is_converting);
      EXPECT_TRUE(walks_everything_once(list));
      ASSERT_GE(list.spans.size(), 2u);
      // All heads of the first k tile are walked at once, by ascending runs of q tiles.
      EXPECT_EQ(list.spans[0].num_tiles, 1);
      EXPECT_EQ(list.spans[0].groups_per_item, 1);
      EXPECT_EQ(list.packed_heads, 1);
      EXPECT_EQ(list.tiles.front().key_begin, 0);
      EXPECT_EQ(list.tiles.front().record_end, rows / 64 / 16);
      for (std::int32_t i = 1; i < list.tiles.front().record_end; ++i) {
        const auto record = static_cast<std::size_t>(list.tiles.front().record_begin + i);
        EXPECT_EQ(list.records[record].band.q0, list.records[record - 1].band.q1);
      }
      // The others are walked whole, in several kv heads side by side: each adds to the first rows.
      EXPECT_EQ(list.spans[1].num_splits, 1);
      EXPECT_GT(list.spans[1].section_heads, 1);
    }
  }
}

/// A binary tree of nodes of 64 rows, each of which sees its ancestors and, causally, itself:
/// written by the rows that see each node, or by the nodes that each one sees.
Mask binary_tree(int depth, bool is_by_query) {
  Mask mask;
  std::vector<Range> path;
  const std::function<std::int32_t(std::int32_t, int)> add_tree = [&](std::int32_t begin,
                                                                      int left) {
    for (const Range& node : path) {
      if (is_by_query) {
        mask.slices.push_back(band_slice({begin, begin + 64}, node, MaskType::Full));
      }
    }
    path.push_back({begin, begin + 64});
    std::int32_t end = begin + 64;
    for (int child = 0; left > 1 && child < 2; ++child) end = add_tree(end, left - 1);
    path.pop_back();
    mask.slices.push_back({.q0 = begin,
                           .q1 = is_by_query ? begin + 64 : end,
                           .k0 = begin,
                           .k1 = begin + 64,
                           .d_min = -kBandInfinity,
                           .d_max = 0});
    return end;
  };
  mask.rows_q = mask.rows_k = add_tree(0, depth);
  return mask;
}

TEST(BackwardScheduleTest, NestedTilesComeShortestFirst) {
  const auto key_of_first_item = [](const BackwardList& list) {
    return list.tiles[static_cast<std::size_t>(list.item(0).tile)].key_begin;
  };
  for (const bool is_by_query : {false, true}) {
    const Mask mask = binary_tree(6, is_by_query);
    ASSERT_EQ(mask.rows_q, 64 * 63);
    const BackwardList fast = list_of(mask, false);
    EXPECT_FALSE(fast.is_ordered);
    EXPECT_EQ(key_of_first_item(fast), 0);
    const BackwardList list = list_of(mask, true);
    EXPECT_NE(key_of_first_item(list), 0);
    EXPECT_EQ(list.tiles.back().key_begin, 0);
    EXPECT_TRUE(walks_everything_once(list));
  }
}

TEST(BackwardScheduleTest, DenseMasksWalkHeadsTogether) {
  const Mask causal{8192, 8192, {band_slice({0, 8192}, {0, 8192}, MaskType::Causal)}};
  for (const bool is_deterministic : {false, true}) {
    const BackwardList list = list_of(causal, is_deterministic);
    EXPECT_FALSE(list.is_group_first);
    EXPECT_EQ(list.is_ordered, is_deterministic);
  }
}

TEST(BackwardScheduleTest, SplitsHeadsWhereItemsAreFew) {
  const Mask mask{512, 512, {band_slice({0, 512}, {0, 512}, MaskType::Full)}};
  BackwardProblem problem = problem_of(mask, 16, 2);
  const BackwardList whole = build_backward_list(problem, mask.slices, {});
  ASSERT_EQ(whole.spans.size(), 1u);
  EXPECT_EQ(whole.spans.front().num_splits, 1);
  EXPECT_EQ(whole.num_slots(), 0);
  problem.num_ctas = 64;
  const BackwardList list = build_backward_list(problem, mask.slices, {}, {.packed_heads = 1});
  ASSERT_EQ(list.spans.size(), 1u);
  EXPECT_EQ(list.spans.front().num_splits, 4);
  EXPECT_EQ(list.spans.front().groups_per_item, 2);
  EXPECT_EQ(list.num_items(), 32);
  EXPECT_EQ(list.slot_floats(128, 128), 8 * 2 * 128 * 128);
  EXPECT_EQ(list.num_counters(), 16 * (8 + 1) + 2 * 4 * 2 + 1);
  const BackwardChoice choice{.packed_heads = 2, .heads_per_item = 4};
  EXPECT_EQ(build_backward_list(problem, mask.slices, {}, choice).spans.front().num_splits, 2);
}

TEST(BackwardScheduleTest, FewItemsAreCutAlike) {
  // Long tiles in many splits before short whole ones would end later: 93 steps instead of 74.
  const Mask mask{2048, 2048, {band_slice({0, 2048}, {0, 2048}, MaskType::Causal)}};
  BackwardProblem problem = problem_of(mask, 64, 8);
  problem.num_ctas = 132;
  problem.dim_qk = problem.dim_v = 64;
  const BackwardList list = build_backward_list(problem, mask.slices, kWideShape,
                                                {.packed_heads = 1, .is_deterministic = false});
  for (const TileSpan& span : list.spans) EXPECT_EQ(span.num_splits, 2);
  EXPECT_TRUE(walks_everything_once(list));
}

}  // namespace
}  // namespace magi::test
