// SPDX-License-Identifier: Apache-2.0
#include "kernels/worklist/backward_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>
#include <vector>

#include "kernels/worklist/backward_problem.hpp"
#include "kernels/worklist/query_run.hpp"
#include "magi/error.hpp"
#include "mask/random_mask.hpp"

namespace magi::test {
namespace {

bool is_left(const BackwardList& list, std::int32_t row) {
  const std::vector<std::int32_t>& tiles = list.left_tiles;
  return std::binary_search(tiles.begin(), tiles.end(), row / list.tile_tokens);
}

/// What kernels that walk the list would do, and whether its additions to dQ are in order.
class Expansion {
 public:
  explicit Expansion(const BackwardList& list)
      : list_(list),
        pairs_(std::size_t(list.problem.rows_q) * std::size_t(list.problem.rows_k)),
        key_owners_(std::size_t(list.problem.rows_k)),
        next_value_(std::size_t(list.num_q_tiles() + list.num_components)),
        writers_(std::size_t(list.problem.rows_q), -1),
        components_(std::size_t(list.num_q_tiles())) {
    for (const KeyTile& work : list.tiles) walk(work);
  }

  bool is_of(const Mask& mask) const {
    const bool is_owned_once =
        std::all_of(key_owners_.begin(), key_owners_.end(), [](int owners) { return owners == 1; });
    return is_whole_ && is_owned_once && pairs_ == expand(mask) &&
           components() == list_.tile_components && has_right_ends();
  }

 private:
  /// Whether each sum that is not left has ended for all its components, and no other.
  bool has_right_ends() const {
    for (std::int32_t tile = 0; tile < list_.num_q_tiles(); ++tile) {
      const bool is_ended = list_.is_converting && !is_left(list_, tile * list_.tile_tokens);
      const std::set<std::int32_t>& components = components_[std::size_t(tile)];
      if (is_ended && components.empty()) return false;
      for (const std::int32_t component : components) {
        if ((next_value_[std::size_t(tile + component)] < 0) != is_ended) return false;
      }
    }
    return true;
  }

  void walk(const KeyTile& work) {
    for (std::int32_t key = work.key_begin; key < work.key_end; ++key) {
      ++key_owners_[std::size_t(key)];
    }
    is_whole_ &= work.key_begin < work.key_end;
    is_whole_ &= work.key_end - work.key_begin <= list_.shape.keys;
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      walk_record(work, list_.records[std::size_t(i)]);
    }
  }

  void walk_record(const KeyTile& work, const KeyRecord& record) {
    const int shift = std::countr_zero(std::uint32_t(list_.tile_tokens));
    const QueryRun run = query_run(record.band, work.key_begin, list_.shape.keys, shift);
    is_whole_ &= record.band.k0 >= work.key_begin && record.band.k1 <= work.key_end;
    for (std::int32_t tile = run.tile_begin; tile < run.tile_end; ++tile) {
      const SemaphoreRun at = run_at(record, tile);
      is_whole_ &= at.component >= 0 && at.component < list_.num_components;
      if (!is_whole_) return;
      std::int32_t& next = next_value_[std::size_t(tile + at.component)];
      is_whole_ &= at.value == next;
      // After the last one nobody adds.
      next = at.is_last != 0 ? -1 : next + 1;
      components_[std::size_t(tile)].insert(at.component);
      const bool is_full = tile >= run.full_begin && tile < run.full_end;
      count(work, record.band, tile, is_full);
      take_rows(record.band, tile, at.component);
    }
  }

  SemaphoreRun run_at(const KeyRecord& record, std::int32_t tile) const {
    SemaphoreRun found{.value = -1, .component = -1};
    for (std::int32_t i = record.run_begin; i < record.run_end; ++i) {
      const SemaphoreRun& run = list_.semaphore_runs[std::size_t(i)];
      if (run.q_tile <= tile) found = run;
    }
    return found;
  }

  /// No row may be written by two components.
  void take_rows(const BandSlice& band, std::int32_t tile, std::int32_t component) {
    const std::int32_t begin = tile * list_.tile_tokens;
    for (std::int32_t row = std::max(begin, band.q0);
         row < std::min(begin + list_.tile_tokens, band.q1); ++row) {
      std::int32_t& writer = writers_[std::size_t(row)];
      is_whole_ &= writer < 0 || writer == component;
      writer = component;
    }
  }

  std::vector<std::int32_t> components() const {
    std::vector<std::int32_t> counts;
    for (const auto& tile : components_) counts.push_back(std::int32_t(tile.size()));
    return counts;
  }

  void count(const KeyTile& work, const BandSlice& band, std::int32_t tile, bool is_full) {
    const std::int32_t begin = tile * list_.tile_tokens;
    const std::int32_t end = begin + list_.tile_tokens;
    if (is_full &&
        (end > list_.problem.rows_q || work.key_end - work.key_begin != list_.shape.keys)) {
      is_whole_ = false;
    }
    for (std::int32_t row = begin; row < std::min(end, list_.problem.rows_q); ++row) {
      const Range seen = visible_keys(band, row);
      for (std::int32_t key = work.key_begin; key < work.key_end; ++key) {
        const bool is_counted = is_full || (key >= seen.begin && key < seen.end);
        if (is_counted) ++pair(row, key);
      }
    }
  }

  std::uint16_t& pair(std::int32_t row, std::int32_t key) {
    return pairs_[std::size_t(row) * std::size_t(list_.problem.rows_k) + std::size_t(key)];
  }

  const BackwardList& list_;
  std::vector<std::uint16_t> pairs_;
  std::vector<int> key_owners_;
  std::vector<std::int32_t> next_value_;            ///< of q tile + component
  std::vector<std::int32_t> writers_;               ///< per row, the component that writes it
  std::vector<std::set<std::int32_t>> components_;  ///< per q tile
  bool is_whole_ = true;
};

bool is_list_of(const BackwardList& list, const Mask& mask) { return Expansion(list).is_of(mask); }

TEST(BackwardListTest, CountsEveryPairAsOftenAsTheMaskInOrder) {
  for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
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
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
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

TEST(BackwardListTest, PlantedFaultsAreSeen) {
  const Mask mask{300, 300, {band_slice({0, 300}, {0, 300}, MaskType::Causal)}};
  const BackwardList good = build_backward_list(problem_of(mask, 2, 1), mask.slices, {});
  ASSERT_TRUE(is_list_of(good, mask));
  BackwardList fault = good;
  fault.records[1].band.d_max += 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.records[0].band.q1 -= 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.semaphore_runs[1].value += 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.tile_components[2] += 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.semaphore_runs[1].is_last ^= 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.tiles[0].record_end -= 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.tiles[0] = fault.tiles[1];
  EXPECT_FALSE(is_list_of(fault, mask));
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

TEST(BackwardListTest, TheMainKernelConvertsSumsWhereItHasTime) {
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

/// Random masks hardly ever have lists that end sums.
TEST(BackwardListTest, RandomWindowsEndEachSumOnce) {
  int num_converting = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
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

TEST(BackwardListTest, DenseMasksNeedFewSemaphoreRunsLongestFirst) {
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

TEST(BackwardListTest, RowsOfDifferentDocumentsAddInAnyOrder) {
  Mask mask{256, 256, {}};
  for (const auto& [begin, end] : {std::pair{0, 100}, {100, 110}, {110, 192}, {192, 256}}) {
    mask.slices.push_back(band_slice({begin, end}, {begin, end}, MaskType::Causal));
  }
  const BackwardList list =
      build_backward_list(problem_of(mask, 1, 1), mask.slices, {}, {.packed_heads = 1});
  EXPECT_EQ(list.num_components, 4);
  EXPECT_EQ(list.tile_components, (std::vector<std::int32_t>{1, 3, 1, 1}));
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

}  // namespace
}  // namespace magi::test
