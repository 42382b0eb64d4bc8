// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/blocks/block_key_lists.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/memory.hpp"
#include "mask/random_mask.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

using BlockKeyListsTest = GpuTest;
using TileBandList = std::vector<BandSlice>;

/// The bands of one k tile of a head as the host finds them, q block by q block.
TileBandList host_bands(const BlockKeyShape& shape, const std::vector<std::uint8_t>& visible,
                        std::int32_t head, std::int32_t tile) {
  const BlockGrid& grid = shape.grid;
  const std::int32_t begin = tile * shape.tile_keys;
  const std::int32_t end = std::min(begin + shape.tile_keys, grid.rows_k);
  TileBandList bands;
  for (std::int32_t block = 0; block < grid.num_q(); ++block) {
    const auto row = static_cast<std::size_t>(head * grid.num_q() + block) *
                     static_cast<std::size_t>(grid.num_k());
    for_each_key_band(
        grid, block, begin, end,
        [&](std::int32_t j) { return std::int32_t{visible[row + static_cast<std::size_t>(j)]}; },
        [&](const BandSlice& band, std::int32_t times) {
          bands.insert(bands.end(), static_cast<std::size_t>(times), band);
        });
  }
  return bands;
}

constexpr std::int64_t kKeptWord = 77;  // of the forward before

struct BuiltKeyLists {
  std::vector<std::int64_t> error_word;
  std::vector<std::uint64_t> counts;
  std::uint32_t num_bad = 0;
  std::vector<BackwardOutcome> outcomes;
  std::vector<KeyRecord> records;
  std::vector<KeyTile> tiles;
};

/// Builds in a workspace full of poison.
BuiltKeyLists build_sync(const BlockKeyShape& shape, const std::vector<std::uint8_t>& visible) {
  const BlockKeyLayout layout = block_key_layout(shape);
  const DeviceBuffer workspace(layout.size_bytes);
  workspace.fill(0xff, nullptr);
  const DeviceBuffer mask = bytes_to_device_sync(visible.data(), visible.size());
  const std::vector<std::int64_t> kept{kKeptWord, kKeptWord};
  const DeviceBuffer word = bytes_to_device_sync(kept.data(), kept.size() * sizeof(std::int64_t));
  build_block_key_lists(
      shape, layout,
      {static_cast<const std::uint8_t*>(mask.data()), static_cast<std::int64_t*>(word.data())},
      workspace.data(), nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const auto* bytes = static_cast<const std::byte*>(workspace.data());
  const auto heads = static_cast<std::size_t>(shape.grid.mask_heads);
  const auto num_tiles = heads * static_cast<std::size_t>(shape.num_tiles());
  const auto num_records = heads * static_cast<std::size_t>(shape.max_records);
  return {.error_word = to_host_sync<std::int64_t>(word.data(), 2),
          .counts = to_host_sync<std::uint64_t>(bytes + layout.counts, heads),
          .num_bad = to_host_sync<std::uint32_t>(bytes + layout.num_bad, 1).front(),
          .outcomes = to_host_sync<BackwardOutcome>(bytes + layout.outcomes, heads),
          .records = to_host_sync<KeyRecord>(bytes + layout.records, num_records),
          .tiles = to_host_sync<KeyTile>(bytes + layout.tiles, num_tiles)};
}

/// Each tile once, with the bands that the host finds, and by falling number of records.
void expect_head(const BlockKeyShape& shape, const std::vector<std::uint8_t>& visible,
                 const BuiltKeyLists& built, std::int32_t head) {
  const std::int32_t shift = length_shift(shape.grid.num_q());
  std::vector<bool> is_seen(static_cast<std::size_t>(shape.num_tiles()));
  std::int32_t before = 0;
  std::int64_t sum = 0;
  for (std::int32_t i = 0; i < shape.num_tiles(); ++i) {
    const KeyTile& tile = built.tiles[static_cast<std::size_t>(head * shape.num_tiles() + i)];
    const std::int32_t index = tile.key_begin / shape.tile_keys;
    ASSERT_FALSE(is_seen[static_cast<std::size_t>(index)]);
    is_seen[static_cast<std::size_t>(index)] = true;
    ASSERT_EQ(tile.key_begin, index * shape.tile_keys);
    ASSERT_EQ(tile.key_end, std::min(tile.key_begin + shape.tile_keys, shape.grid.rows_k));
    TileBandList bands;
    for (std::int32_t r = tile.record_begin; r < tile.record_end; ++r) {
      bands.push_back(built.records[static_cast<std::size_t>(head * shape.max_records + r)].band);
    }
    ASSERT_EQ(bands, host_bands(shape, visible, head, index));
    sum += std::ssize(bands);
    const std::int32_t bucket = length_bucket(tile.record_end - tile.record_begin, shift);
    ASSERT_LE(before, bucket);
    before = bucket;
  }
  ASSERT_EQ(built.counts[static_cast<std::size_t>(head)], static_cast<std::uint64_t>(sum));
  const BackwardOutcome& outcome = built.outcomes[static_cast<std::size_t>(head)];
  ASSERT_EQ(outcome.num_records, sum);
  ASSERT_EQ(outcome.num_tiles, shape.num_tiles());
  ASSERT_EQ(outcome.num_items, shape.num_tiles() * (shape.grid.heads_kv / shape.grid.mask_heads));
}

TEST_F(BlockKeyListsTest, EqualTheHostsBands) {
  for (RandomStream& random : testing::RandomStreams(100)) {
    BlockKeyShape shape;
    shape.grid = {.rows_q = random.between(1, 3000),
                  .rows_k = random.between(1, 3000),
                  .q_block = random.chance(50) ? random.between(1, 4) : random.between(5, 256),
                  .k_block = random.chance(50) ? random.between(1, 16) : random.between(17, 256),
                  .heads_kv = random.between(1, 4),
                  .is_causal = random.chance(50)};
    if (random.chance(30)) shape.grid.q_block = shape.grid.k_block = 64;
    shape.grid.mask_heads = random.chance(50) ? shape.grid.heads_kv : 1;
    shape.tile_keys = random.chance(50) ? 64 : 128;
    std::vector<std::uint8_t> visible(static_cast<std::size_t>(shape.grid.num_lists()) *
                                      static_cast<std::size_t>(shape.grid.num_k()));
    const std::int32_t percent = random.between(0, 100);
    const std::int32_t times = random.chance(30) ? 3 : 1;
    for (std::uint8_t& value : visible) {
      value = static_cast<std::uint8_t>(random.chance(percent) ? random.between(1, times) : 0);
    }
    shape.max_records = most_records(shape, times);
    const BuiltKeyLists built = build_sync(shape, visible);
    ASSERT_EQ(built.num_bad, 0u);
    ASSERT_EQ(built.error_word, (std::vector<std::int64_t>{kKeptWord, kKeptWord}));
    for (std::int32_t head = 0; head < shape.grid.mask_heads; ++head) {
      ASSERT_NO_FATAL_FAILURE(expect_head(shape, visible, built, head));
    }
  }
}

TEST_F(BlockKeyListsTest, TellWhatHasNoRoom) {
  BlockKeyShape shape{.grid = {.rows_q = 640, .rows_k = 6400}, .tile_keys = 64};
  std::vector<std::uint8_t> visible(10 * 100, 1);
  shape.max_records = 1000;
  EXPECT_EQ(build_sync(shape, visible).outcomes.front().is_overflowing, 0);
  shape.max_records = 999;
  const BuiltKeyLists full = build_sync(shape, visible);
  EXPECT_EQ(full.outcomes.front().is_overflowing, 1);
  EXPECT_EQ(full.outcomes.front().num_records, 0);
  EXPECT_EQ(full.counts.front(), 1000u);
  EXPECT_EQ(full.error_word, (std::vector<std::int64_t>{1, -1}));
  visible[555] = 255;
  shape.max_records = 2000;
  const BuiltKeyLists bad = build_sync(shape, visible);
  EXPECT_GT(bad.num_bad, 0u);
  EXPECT_EQ(bad.error_word, (std::vector<std::int64_t>{bad.num_bad, -1}));
}

/// The room of each head counts by itself, and entries that are too large only where there is room.
TEST(BlockKeyOutcomeTest, TellsHowManyRecordsAreBeyond) {
  std::vector<std::uint64_t> counts{3, 10, 0};
  std::uint32_t num_bad = 0;
  BlockKeyOutcome outcome{
      .counts = counts.data(), .num_bad = &num_bad, .mask_heads = 3, .max_records = 10};
  EXPECT_EQ(outcome.num_beyond(), 0);
  EXPECT_TRUE(outcome.holds());
  num_bad = 2;
  EXPECT_EQ(outcome.num_beyond(), 2);
  EXPECT_FALSE(outcome.holds());
  outcome.max_records = 2;
  EXPECT_EQ(outcome.num_beyond(), 1 + 8);
  counts = {std::uint64_t{1} << 40, 0, 0};
  outcome.counts = counts.data();
  EXPECT_EQ(outcome.num_beyond(), (std::int64_t{1} << 40) - 2);
  EXPECT_FALSE(outcome.holds());
}

}  // namespace
}  // namespace magi::test
