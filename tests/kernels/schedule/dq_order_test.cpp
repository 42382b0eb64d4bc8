// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/dq_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/schedule/backward_problem.hpp"
#include "kernels/schedule/expand_backward_list.hpp"
#include "mask/random_mask.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

TEST(DqOrderTest, RecordsThatShareRowsAreOfOneComponent) {
  const auto record = [](std::int32_t begin, std::int32_t end) {
    return KeyRecord{.band = {.q0 = begin, .q1 = end, .k0 = 0, .k1 = 1}};
  };
  // [20, 30) only touches [0, 20); [5, 12) joins [0, 10) and [11, 20).
  const std::vector<KeyRecord> records = {record(11, 20), record(20, 30), record(0, 10),
                                          record(5, 12), record(40, 41)};
  EXPECT_EQ(find_components(records), (std::vector<std::int32_t>{0, 1, 0, 0, 2}));
  EXPECT_TRUE(find_components({}).empty());
}

void expect_wrong_ends_are_seen(const BackwardList& good, const Mask& mask) {
  BackwardList fault = good;
  const auto end = std::find_if(fault.semaphore_runs.begin(), fault.semaphore_runs.end(),
                                [](const SemaphoreRun& run) { return run.is_last != 0; });
  ASSERT_NE(end, fault.semaphore_runs.end());
  end->is_last = 0;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.left_tiles.pop_back();
  EXPECT_FALSE(is_list_of(fault, mask));
}

TEST(DqOrderTest, TheMainKernelConvertsSumsWhereItHasTime) {
  // Rows without keys are left.
  Mask mask = converted_window();
  for (const BackwardTileShape& shape : {BackwardTileShape{}, kWideShape}) {
    for (const std::int32_t packed_heads : {1, 2, 4, 16}) {
      const BackwardList list = build_backward_list(problem_of(mask, 16, 1), mask.slices, shape,
                                                    {.packed_heads = packed_heads});
      ASSERT_TRUE(is_list_of(list, mask));
      EXPECT_TRUE(list.is_converting);
      EXPECT_FALSE(is_left(list, 500));
      EXPECT_TRUE(is_left(list, 1090));
      expect_wrong_ends_are_seen(list, mask);
    }
  }
  // Of documents of one k tile each step ends a sum.
  mask.slices.clear();
  for (std::int32_t row = 0; row < 1024; row += 128) {
    mask.slices.push_back(band_slice({row, row + 128}, {row, row + 128}, MaskType::Full));
  }
  const BackwardList list = build_backward_list(problem_of(mask, 1, 1), mask.slices, {});
  ASSERT_TRUE(is_list_of(list, mask));
  EXPECT_FALSE(list.is_converting);
  EXPECT_TRUE(list.left_tiles.empty());
}

TEST(DqOrderTest, ATinyListLeavesOnlyRowsWithoutKeys) {
  const auto causal = [](std::int32_t begin, std::int32_t end) {
    return band_slice({begin, end}, {begin, end}, MaskType::Causal);
  };
  for (const std::vector<BandSlice>& slices :
       {std::vector<BandSlice>{causal(0, 1)}, {causal(0, 64)}, {causal(0, 64), causal(64, 128)}}) {
    const std::int32_t rows = slices.back().q1;
    const Mask mask{rows + 200, rows, slices};
    const BackwardList list = build_backward_list(problem_of(mask, 2, 2), mask.slices, {});
    ASSERT_TRUE(is_list_of(list, mask));
    EXPECT_TRUE(list.is_ordered && list.is_converting);
    for (std::int32_t row = 0; row < rows; row += 20) EXPECT_FALSE(is_left(list, row));
    EXPECT_TRUE(is_left(list, rows + 199));
  }
}

TEST(DqOrderTest, RandomTinyListsEndEachSumOnce) {
  RandomMaskOptions options;
  options.max_rows_q = options.max_rows_k = 64;
  int num_converting = 0;
  for (RandomStream& random : testing::RandomStreams(200)) {
    const Mask mask = random_mask(random, options);
    const BackwardProblem problem = problem_of(mask, 2, 2);
    const BackwardChoice choice{.is_deterministic = random.chance(50)};
    const BackwardTileShape shape = random.chance(50) ? BackwardTileShape{} : kWideShape;
    const BackwardList list = build_backward_list(problem, mask.slices, shape, choice);
    ASSERT_TRUE(is_list_of(list, mask));
    num_converting += list.is_converting ? 1 : 0;
  }
  EXPECT_GT(num_converting, 20);
}

TEST(DqOrderTest, AKernelWithoutConverterLeavesAllSums) {
  const Mask mask = converted_window();
  const BackwardTileShape shape{.keys = 64, .has_converter = false};
  const BackwardList list = build_backward_list(problem_of(mask, 16, 1), mask.slices, shape);
  ASSERT_TRUE(is_list_of(list, mask));
  EXPECT_TRUE(list.is_ordered);
  EXPECT_FALSE(list.is_converting);
  EXPECT_TRUE(list.left_tiles.empty());
}

/// Random masks hardly ever have lists that end sums.
TEST(DqOrderTest, RandomWindowsEndEachSumOnce) {
  int num_converting = 0;
  for (RandomStream& random : testing::RandomStreams(60)) {
    const std::int32_t rows = random.between(600, 900);
    // Two components that may meet inside a q tile.
    const std::int32_t cut = 16 * random.between(12, 24) + 5 * random.between(0, 1);
    const std::int32_t end = rows - random.between(0, 20);
    const std::int32_t width = random.between(34, 70);
    Mask mask{rows,
              rows,
              {{.q0 = 0, .q1 = cut, .k0 = 0, .k1 = cut, .d_min = -width, .d_max = 0},
               {.q0 = cut, .q1 = end, .k0 = cut, .k1 = rows, .d_min = -width, .d_max = 0}}};
    if (random.chance(50)) mask.slices.push_back(mask.slices.front());
    const BackwardList list =
        build_backward_list(problem_of(mask, 2, 1), mask.slices, {.rows = 16, .keys = 16},
                            {.packed_heads = 1 << random.between(0, 1)});
    ASSERT_TRUE(is_list_of(list, mask));
    num_converting += list.is_converting ? 1 : 0;
  }
  EXPECT_GT(num_converting, 20);
}

TEST(DqOrderTest, DenseMasksNeedFewSemaphoreRunsLongestFirst) {
  const Mask mask{4096, 4096, {band_slice({0, 4096}, {0, 4096}, MaskType::Causal)}};
  const BackwardList list =
      build_backward_list(problem_of(mask, 8, 1), mask.slices, {}, {.packed_heads = 1});
  ASSERT_EQ(list.tiles.size(), 32u);
  EXPECT_EQ(list.semaphore_runs.size(), 32u);
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(list.tiles[i].key_begin, std::int32_t(128 * i));
    EXPECT_EQ(list.semaphore_runs[i],
              (SemaphoreRun{.q_tile = std::int32_t(2 * i), .value = std::int32_t(i)}));
  }
}

TEST(DqOrderTest, RowsOfDifferentDocumentsAddInAnyOrder) {
  Mask mask{256, 256, {}};
  for (const auto& [begin, end] : {std::pair{0, 100}, {100, 110}, {110, 192}, {192, 256}}) {
    mask.slices.push_back(band_slice({begin, end}, {begin, end}, MaskType::Causal));
  }
  const BackwardList list =
      build_backward_list(problem_of(mask, 1, 1), mask.slices, {}, {.packed_heads = 1});
  EXPECT_EQ(list.num_components, 4);
  EXPECT_EQ(list.tile_components, (std::vector<std::int32_t>{1, 3, 1, 1}));
}

// The example of docs/kernels/backward.md.
TEST(DqOrderTest, SemaphoreValuesOfTwoDocumentsAreThoseOfTheDesign) {
  Mask mask{384, 384, {}};
  for (const auto& [begin, end] : {std::pair{0, 224}, {224, 384}}) {
    mask.slices.push_back(band_slice({begin, end}, {begin, end}, MaskType::Causal));
  }
  const BackwardList list =
      build_backward_list(problem_of(mask, 1, 1), mask.slices, {}, {.packed_heads = 1});
  ASSERT_TRUE(is_list_of(list, mask));
  ASSERT_EQ(list.tiles.size(), 4u);
  const std::int32_t keys[4][2] = {{0, 128}, {224, 352}, {128, 224}, {352, 384}};
  const SemaphoreRun runs[4] = {{.q_tile = 0, .value = 0, .component = 0},
                                {.q_tile = 3, .value = 0, .component = 1},
                                {.q_tile = 2, .value = 1, .component = 0},
                                {.q_tile = 5, .value = 1, .component = 1}};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(list.tiles[i].key_begin, keys[i][0]);
    EXPECT_EQ(list.tiles[i].key_end, keys[i][1]);
    const KeyRecord& record = list.records[static_cast<std::size_t>(list.tiles[i].record_begin)];
    ASSERT_EQ(record.run_end - record.run_begin, 1);
    EXPECT_EQ(list.semaphore_runs[static_cast<std::size_t>(record.run_begin)], runs[i]);
  }
  EXPECT_EQ(list.tile_components, (std::vector<std::int32_t>{1, 1, 1, 2, 1, 1}));
  EXPECT_EQ(list.num_semaphores(), 8);
  EXPECT_EQ(list.tile_semaphores,
            (std::vector<TileSemaphores>{{0, 1}, {1, 1}, {2, 2}, {3, 3}, {5, 1}, {6, 2}}));
}

}  // namespace
}  // namespace magi::test
