// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/backward_list.hpp"

#include <gtest/gtest.h>

#include "kernels/schedule/backward_problem.hpp"
#include "kernels/schedule/expand_backward_list.hpp"
#include "magi/error.hpp"
#include "mask/random_mask.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

namespace magi::test {
namespace {

TEST(BackwardListTest, CountsEveryPairAsOftenAsTheMaskInOrder) {
  for (RandomStream& random : testing::RandomStreams(4000)) {
    const Mask mask = random_mask(random);
    const BackwardTileShape shape = random_shape(random);
    const std::int32_t group = 1 << random.between(0, 3);
    const BackwardProblem problem = problem_of(mask, 2 * group, 2);
    const std::int32_t packed_heads = 1 << random.between(0, group == 1 ? 0 : 1);
    ASSERT_TRUE(is_list_of(
        build_backward_list(problem, mask.slices, shape, {.packed_heads = packed_heads}), mask));
    ASSERT_TRUE(is_list_of(build_backward_list(problem, mask.slices, shape), mask));
  }
}

TEST(BackwardListTest, HoldsForTheKernelsOwnTiles) {
  RandomMaskOptions options;
  options.max_rows_q = 600;
  options.max_rows_k = 600;
  for (RandomStream& random : testing::RandomStreams(60)) {
    const Mask mask = random_mask(random, options);
    for (const BackwardTileShape& shape : {BackwardTileShape{}, kWideShape}) {
      for (const std::int32_t packed_heads : {1, 8}) {
        ASSERT_TRUE(is_list_of(build_backward_list(problem_of(mask, 8, 1), mask.slices, shape,
                                                   {.packed_heads = packed_heads}),
                               mask));
      }
    }
  }
}

/// Windows beside a few keys that all queries see, and rows that see all keys.
TEST(BackwardListTest, HoldsWhereKeysStandApart) {
  int num_cut = 0;
  for (RandomStream& random : testing::RandomStreams(300)) {
    const std::int32_t rows = random.between(200, 700);
    const std::int32_t first = random.between(1, 20);
    const Mask mask{rows,
                    rows,
                    {{.q0 = random.between(0, 9), .q1 = rows, .k0 = 0, .k1 = first},
                     {.q0 = 0, .q1 = random.between(0, 9), .k0 = 0, .k1 = rows},
                     {.q0 = 0,
                      .q1 = rows,
                      .k0 = random.between(0, first),
                      .k1 = rows,
                      .d_min = -random.between(0, 40),
                      .d_max = random.between(0, 9)}}};
    const BackwardTileShape shape{.rows = 16, .keys = 8 * random.between(1, 3)};
    const BackwardChoice choice{.packed_heads = 1 << random.between(0, 2),
                                .is_deterministic = random.chance(50)};
    const BackwardList list =
        build_backward_list(problem_of(mask, 8, 2), mask.slices, shape, choice);
    ASSERT_TRUE(is_list_of(list, mask));
    const KeyTile& tile = list.tiles.front();
    num_cut += tile.key_begin == 0 && tile.record_end - tile.record_begin > 3 ? 1 : 0;
  }
  EXPECT_GT(num_cut, 100);
}

/// Rows of a rank that are two pieces of a document, of which the second sees the keys of both.
TEST(BackwardListTest, OrderedListsWalkTheLastRowsFirst) {
  const Mask mask{1900,
                  1900,
                  {band_slice({0, 900}, {0, 900}, MaskType::Causal),
                   band_slice({1000, 1900}, {0, 900}, MaskType::Full),
                   band_slice({1000, 1900}, {1000, 1900}, MaskType::Causal)}};
  const BackwardList list = build_backward_list(problem_of(mask, 8, 2), mask.slices, {});
  ASSERT_TRUE(list.is_ordered && is_list_of(list, mask));
  int num_of_both = 0;
  for (const KeyTile& tile : list.tiles) {
    for (std::int32_t i = tile.record_begin + 1; i < tile.record_end; ++i, ++num_of_both) {
      const auto record = list.records.begin() + i;
      EXPECT_GT(record[-1].band.q1, record->band.q1) << "keys from " << tile.key_begin;
    }
  }
  EXPECT_GT(num_of_both, 5);
}

TEST(BackwardListTest, PlantedFaultsAreSeen) {
  const Mask mask{300, 300, {band_slice({0, 300}, {0, 300}, MaskType::Causal)}};
  const BackwardList good = build_backward_list(problem_of(mask, 2, 1), mask.slices, {});
  ASSERT_TRUE(is_list_of(good, mask));
  void (*const faults[])(BackwardList&) = {
      [](BackwardList& list) { list.records[1].band.d_max += 1; },
      [](BackwardList& list) { list.records[0].band.q1 -= 1; },
      [](BackwardList& list) { list.semaphore_runs[1].value += 1; },
      [](BackwardList& list) { list.tile_components[2] += 1; },
      [](BackwardList& list) { list.tile_semaphores[2].num_additions += 1; },
      [](BackwardList& list) { list.tile_semaphores[1].begin += 1; },
      [](BackwardList& list) { list.semaphore_runs[1].is_last ^= 1; },
      [](BackwardList& list) { list.tiles[0].record_end -= 1; },
      [](BackwardList& list) { list.tiles[0] = list.tiles[1]; },
  };
  for (const auto& plant : faults) {
    BackwardList fault = good;
    plant(fault);
    EXPECT_FALSE(is_list_of(fault, mask));
  }
}

TEST(BackwardListTest, CutsTilesWhereDocumentsBegin) {
  Mask mask{1000, 1000, {}};
  for (const auto& [begin, end] : {std::pair{0, 200}, {200, 330}, {330, 1000}}) {
    mask.slices.push_back(band_slice({begin, end}, {begin, end}, MaskType::Causal));
  }
  const BackwardList list = build_backward_list(problem_of(mask, 8, 1), mask.slices, {});
  for (const KeyTile& work : list.tiles) EXPECT_EQ(work.record_end - work.record_begin, 1);
  EXPECT_GT(list.packed_heads, 1);
  // Where a cut for each of many slices would leave nothing but crumbs, there is none.
  mask.slices.clear();
  for (std::int32_t row = 0; row < 1000; ++row) {
    mask.slices.push_back({.q0 = row, .q1 = row + 1, .k0 = row, .k1 = 1000});
  }
  EXPECT_EQ(build_backward_list(problem_of(mask, 8, 1), mask.slices, {}).tiles.size(), 8u);
}

TEST(BackwardListTest, ListsKeysThatNobodySeesAndNoRowsAtAll) {
  const BackwardList list = build_backward_list(problem_of({0, 400, {}}, 4, 1), {}, {});
  EXPECT_EQ(list.tiles.size(), 4u);
  EXPECT_TRUE(list.records.empty());
  EXPECT_EQ(list.num_sums(), 0);
  EXPECT_EQ(build_backward_list(problem_of({9, 0, {}}, 4, 1), {}, {}).num_items(), 0);
}

TEST(BackwardListTest, RefusesWhatItCannotPack) {
  const BackwardProblem problem{.rows_q = 10, .rows_k = 10, .heads_q = 12, .heads_kv = 2};
  EXPECT_THROW(build_backward_list(problem, {}, {}, {.packed_heads = 4}), InvalidArgument);
  EXPECT_THROW(build_backward_list(problem, {}, {}, {.packed_heads = 3}), InvalidArgument);
  EXPECT_THROW(build_backward_list(problem, {}, {}, {.packed_heads = -1}), InvalidArgument);
  EXPECT_THROW(build_backward_list(problem, {}, {}, {.heads_per_item = 4}), InvalidArgument);
  EXPECT_THROW(build_backward_list(problem, {}, {}, {.section_heads = -1}), InvalidArgument);
  EXPECT_THROW(build_backward_list(problem, {}, {}, {.packed_heads = 2, .heads_per_item = 3}),
               InvalidArgument);
  BackwardProblem uneven = problem;
  uneven.heads_q = 5;
  EXPECT_THROW(build_backward_list(uneven, {}, {}), InvalidArgument);
  const BandSlice outside{.q0 = 0, .q1 = 11, .k0 = 0, .k1 = 10};
  EXPECT_THROW(build_backward_list(problem, {&outside, 1}, {}), InvalidArgument);
}

TEST(BackwardListTest, RefusesMoreRecordsThanItNumbers) {
  const BackwardProblem problem{.rows_q = 10, .rows_k = 1 << 22};
  const std::vector<BandSlice> slices(1 << 16, {0, problem.rows_q, 0, problem.rows_k});
  for (const bool is_plain : {false, true}) {
    EXPECT_EQ(testing::refusal_of(
                  [&] { build_backward_list(problem, slices, {}, {.is_plain = is_plain}); }),
              "number of records of k tiles is 2147483648; allowed: up to 2^31 - 1");
  }
}

}  // namespace
}  // namespace magi::test
