// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/blocks/block_grid.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "mask/random_mask.hpp"
#include "support/random_streams.hpp"

namespace magi {
namespace {

/// The list of a q block: blocks that it may reach, ascending, some of them several times.
std::vector<std::int32_t> random_list(RandomStream& random, const BlockGrid& grid,
                                      std::int32_t block) {
  std::vector<std::int32_t> list;
  const std::int32_t percent = random.between(0, 100);
  for (std::int32_t k = 0; k < grid.num_reached(block); ++k) {
    const std::int32_t times = random.chance(percent) ? random.between(1, 3) / 2 + 1 : 0;
    list.insert(list.end(), static_cast<std::size_t>(times), k);
  }
  return list;
}

/// Walks the k tiles of a q tile as a kernel does: counts how often each row sees each key.
class TileWalk {
 public:
  TileWalk(const BlockGrid& grid, const std::vector<std::int32_t>& list, Range rows)
      : grid_(grid), shape_(gather_shape(grid.k_block, 128)), list_(list), rows_(rows) {
    for_each_block_run(grid_, shape_, rows.begin, rows.end, std::int32_t(list.size()), entry_at(),
                       [&](const BlockRun& run) { visit(run); });
  }

  std::int32_t times(std::int32_t row, std::int32_t key) const {
    const auto found = times_.find({row, key});
    return found == times_.end() ? 0 : found->second;
  }
  std::size_t num_pairs() const { return times_.size(); }
  std::int32_t num_tiles() const { return num_tiles_; }
  std::int32_t num_last() const { return num_last_; }
  const std::set<std::int32_t>& loaded_blocks() const { return loaded_blocks_; }

 private:
  std::function<std::int32_t(std::int32_t)> entry_at() const {
    return [this](std::int32_t i) { return list_.at(static_cast<std::size_t>(i)); };
  }

  void visit(const BlockRun& run) {
    EXPECT_EQ(num_last_, 0) << "a run follows the last";
    num_last_ += run.is_last;
    num_tiles_ += run.num_tiles;
    for (std::int32_t i = 0; i < run.num_tiles * shape_.units_per_tile; ++i) {
      const std::int32_t key = key_of_unit(grid_, shape_, run, i, entry_at());
      if (key >= 0) loaded_blocks_.insert(key / grid_.k_block);
      for (std::int32_t j = 0; j < shape_.unit; ++j) {
        const std::int32_t column = run.first_column(shape_) + i * shape_.unit + j;
        for (std::int32_t row = rows_.begin; row < rows_.end; ++row) {
          const bool is_seen = run.is_masked == 0 || (column < run.key_end && column < limit(row));
          if (is_seen) count(row, key < 0 ? -1 : key + j);
        }
      }
    }
  }

  std::int32_t limit(std::int32_t row) const {
    return grid_.is_causal ? row + 1 + grid_.rows_k - grid_.rows_q : 1 << 30;
  }
  void count(std::int32_t row, std::int32_t key) {
    EXPECT_GE(key, 0) << "row " << row << " sees a key that is not loaded";
    ++times_[{row, key}];
  }

  const BlockGrid& grid_;
  GatherShape shape_;
  const std::vector<std::int32_t>& list_;
  Range rows_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> times_;
  std::set<std::int32_t> loaded_blocks_;
  std::int32_t num_tiles_ = 0;
  std::int32_t num_last_ = 0;
};

/// Pairs by the definition of a mask of blocks.
void expect_pairs(const BlockGrid& grid, const std::vector<std::int32_t>& list, Range rows) {
  const TileWalk walk(grid, list, rows);
  std::size_t num_pairs = 0;
  for (std::int32_t row = rows.begin; row < rows.end; ++row) {
    for (std::int32_t key = 0; key < grid.rows_k; ++key) {
      const bool is_hidden = grid.is_causal && key > row + grid.rows_k - grid.rows_q;
      const auto times = is_hidden ? 0 : std::count(list.begin(), list.end(), key / grid.k_block);
      num_pairs += times > 0 ? 1 : 0;
      ASSERT_EQ(walk.times(row, key), times) << "row " << row << " key " << key;
    }
  }
  EXPECT_EQ(walk.num_pairs(), num_pairs);
  EXPECT_EQ(walk.num_last(), num_pairs == 0 ? 0 : 1);
  for (const std::int32_t block : walk.loaded_blocks()) {
    EXPECT_TRUE(std::binary_search(list.begin(), list.end(), block)) << "block " << block;
  }
}

TEST(BlockGridTest, RunsHoldThePairsOfTheList) {
  for (RandomStream& random : testing::RandomStreams(400)) {
    const std::int32_t tokens = 8 << random.between(0, 3);
    const BlockGrid grid{.rows_q = random.between(1, 300),
                         .rows_k = random.between(1, 700),
                         .q_block = tokens * random.between(1, 2),
                         .k_block = 16 * random.between(1, 16),
                         .is_causal = random.chance(60)};
    const std::int32_t block = random.between(0, grid.num_q() - 1);
    const std::int32_t begin = block * grid.q_block;
    const std::int32_t end = std::min(begin + tokens, grid.rows_q);
    ASSERT_NO_FATAL_FAILURE(expect_pairs(grid, random_list(random, grid, block), {begin, end}));
  }
}

/// Two blocks of 64 keys are a tile; what the diagonal cuts fills the last of them.
TEST(BlockGridTest, BlocksFillTiles) {
  const BlockGrid grid{.rows_q = 1024, .rows_k = 1024, .is_causal = true};
  const std::vector<std::int32_t> even{0, 3, 5, 9};
  EXPECT_EQ(TileWalk(grid, even, {15 * 64, 15 * 64 + 16}).num_tiles(), 2);
  const std::vector<std::int32_t> with_diagonal{0, 3, 5, 15};
  EXPECT_EQ(TileWalk(grid, with_diagonal, {15 * 64, 15 * 64 + 16}).num_tiles(), 2);
}

/// The bands of all q blocks and k tiles hold each pair as often as its blocks are seen.
TEST(BlockGridTest, BandsHoldThePairsOfTheMask) {
  for (RandomStream& random : testing::RandomStreams(200)) {
    const BlockGrid grid{.rows_q = random.between(1, 200),
                         .rows_k = random.between(1, 400),
                         .q_block = random.between(1, 256),
                         .k_block = 16 * random.between(1, 16),
                         .is_causal = random.chance(60)};
    const std::int32_t percent = random.between(0, 100);
    for (std::int32_t block = 0; block < grid.num_q(); ++block) {
      std::vector<std::int32_t> times;
      for (std::int32_t j = 0; j < grid.num_k(); ++j) {
        times.push_back(random.chance(percent) ? random.between(1, 2) : 0);
      }
      std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> seen;
      for (std::int32_t begin = 0; begin < grid.rows_k; begin += 128) {
        const Range tile{begin, std::min(begin + 128, grid.rows_k)};
        for_each_key_band(
            grid, block, tile.begin, tile.end,
            [&](std::int32_t j) { return times.at(static_cast<std::size_t>(j)); },
            [&](const BandSlice& band, std::int32_t count) {
              EXPECT_TRUE(band == shrink(band) && band.k0 >= tile.begin && band.k1 <= tile.end);
              for (std::int32_t row = band.q0; row < band.q1; ++row) {
                for (std::int32_t key = band.k0; key < band.k1; ++key) {
                  const bool is_in = key - row >= band.d_min && key - row <= band.d_max;
                  if (is_in) seen[{row, key}] += count;
                }
              }
            });
      }
      for (std::int32_t row = block * grid.q_block; row <= grid.last_row(block); ++row) {
        for (std::int32_t key = 0; key < grid.rows_k; ++key) {
          const bool is_hidden = grid.is_causal && key > row + grid.rows_k - grid.rows_q;
          const std::int32_t expected =
              is_hidden ? 0 : times[static_cast<std::size_t>(key / grid.k_block)];
          const auto found = seen.find({row, key});
          ASSERT_EQ(found == seen.end() ? 0 : found->second, expected);
        }
      }
    }
  }
}

TEST(BlockGridTest, UnitsDivideBlocksAndTiles) {
  for (const auto& [block, unit] : std::vector<std::pair<int, int>>{
           {16, 16}, {48, 16}, {64, 64}, {96, 32}, {128, 128}, {192, 64}, {256, 128}}) {
    const GatherShape shape = gather_shape(block, 128);
    EXPECT_EQ(shape.unit, unit);
    EXPECT_EQ(shape.unit * shape.units_per_block, block);
    EXPECT_EQ(shape.unit * shape.units_per_tile, 128);
  }
}

TEST(BlockGridTest, LongerListsComeFirst) {
  for (const std::int32_t num_k : {1, 512, 1023, 1024, 5000}) {
    const std::int32_t shift = length_shift(num_k);
    EXPECT_EQ(length_bucket(0, shift), kLengthBuckets - 1);
    // Nothing follows the empty ones: a split k tile waits for the user of its slot before it, and
    // an empty one uses none.
    EXPECT_LT(length_bucket(1, shift), length_bucket(0, shift));
    for (std::int32_t length = 1; length <= 2 * num_k; ++length) {
      EXPECT_LE(length_bucket(length, shift), length_bucket(length - 1, shift));
      EXPECT_GE(length_bucket(length, shift), 0);
    }
  }
}

}  // namespace
}  // namespace magi
