// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/tile_records.hpp"

#include <gtest/gtest.h>

#include "mask/random_mask.hpp"
#include "support/random_mask.hpp"

namespace magi::cpu {
namespace {

/// Pairs that the blocks of all tiles reach, counted by the definition of visibility.
std::vector<int> counts_of_blocks(const Mask& mask, std::int32_t tile_rows,
                                  std::int32_t block_cols) {
  std::vector<int> counts(static_cast<std::size_t>(mask.rows_q) *
                          static_cast<std::size_t>(mask.rows_k));
  const TileRecords records = build_tile_records(mask.slices, mask.rows_q, tile_rows);
  std::vector<TileRecord> active;
  for (std::int64_t tile = 0; tile * tile_rows < mask.rows_q; ++tile) {
    std::int32_t last_end = 0;
    for_each_column_block(records.of_tile(tile), block_cols, active, [&](const ColumnBlock& block) {
      EXPECT_EQ(block.cols.begin % block_cols, 0);
      EXPECT_GE(block.cols.begin, last_end);
      EXPECT_LT(block.used.begin, block.used.end);
      last_end = block.cols.end;
      for (const TileRecord& record : block.records) {
        const BandSlice& slice = mask.slices[static_cast<std::size_t>(record.slice)];
        for (std::int32_t i = record.rows.begin; i < record.rows.end; ++i) {
          EXPECT_EQ(i / tile_rows, tile);
          for (std::int32_t j = block.used.begin; j < block.used.end; ++j) {
            const auto at = static_cast<std::size_t>(std::int64_t{i} * mask.rows_k + j);
            counts[at] += magi::testing::sees(slice, i, j);
          }
        }
      }
    });
  }
  return counts;
}

TEST(TileRecords, BlocksCoverEveryPairOnce) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    RandomStream random(seed);
    const Mask mask = random_mask(random);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + magi::testing::describe(mask));
    const std::int32_t tile_rows = random.between(1, 40), block_cols = random.between(1, 40);
    ASSERT_EQ(counts_of_blocks(mask, tile_rows, block_cols), magi::testing::dense_counts(mask));
  }
}

TEST(TileRecords, EmptySlicesLeaveNothing) {
  const std::vector<BandSlice> slices = {
      {3, 3, 0, 9}, {0, 9, 4, 4}, {0, 9, 0, 9, 2, 1}, {0, 2, 6, 9, -3, 3}};
  EXPECT_TRUE(build_tile_records(slices, 9, 4).records.empty());
  EXPECT_TRUE(build_tile_records({}, 0, 4).records.empty());
}

TEST(TileRecords, FarColumnsAreReachedWithoutWalkingThere) {
  const std::int32_t rows = kMaxRows;
  const std::vector<BandSlice> slices = {{0, 1, 0, 1}, {0, 1, rows - 1, rows}};
  const TileRecords records = build_tile_records(slices, 1, 64);
  std::vector<TileRecord> active;
  int num_blocks = 0;
  for_each_column_block(records.of_tile(0), 128, active, [&](const ColumnBlock&) { ++num_blocks; });
  EXPECT_EQ(num_blocks, 2);
}

}  // namespace
}  // namespace magi::cpu
