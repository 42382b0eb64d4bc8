// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/blocks/block_lists.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/memory.hpp"
#include "mask/random_mask.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

using BlockListsTest = GpuTest;

/// What the host makes of the same mask, list by list.
std::vector<std::vector<std::int32_t>> host_lists(const BlockGrid& grid,
                                                  const std::vector<std::uint8_t>& visible) {
  std::vector<std::vector<std::int32_t>> lists;
  for (std::int32_t list = 0; list < grid.num_lists(); ++list) {
    lists.emplace_back();
    for (std::int32_t k = 0; k < grid.num_reached(list % grid.num_q()); ++k) {
      const auto place = static_cast<std::size_t>(list) * static_cast<std::size_t>(grid.num_k());
      lists.back().insert(lists.back().end(), visible[place + static_cast<std::size_t>(k)], k);
    }
  }
  return lists;
}

struct BuiltLists {
  BlockListHeader header;
  std::vector<std::vector<std::int32_t>> lists;
  std::vector<std::int32_t> order;
};

/// Builds in a workspace full of poison.
BuiltLists build_sync(const BlockListShape& shape, const std::vector<std::uint8_t>& visible) {
  const BlockListLayout layout = block_list_layout(shape);
  const DeviceBuffer workspace(layout.size_bytes);
  workspace.fill(0xff, nullptr);
  const DeviceBuffer mask = bytes_to_device_sync(visible.data(), visible.size());
  build_block_lists(shape, layout, {static_cast<const std::uint8_t*>(mask.data())},
                    workspace.data(), nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const auto* bytes = static_cast<const std::byte*>(workspace.data());
  BuiltLists built;
  built.header = to_host_sync<BlockListHeader>(bytes, 1).front();
  const auto num_lists = static_cast<std::size_t>(shape.grid.num_lists());
  const auto entries = to_host_sync<std::int32_t>(bytes + layout.entries,
                                                  static_cast<std::size_t>(shape.max_entries));
  for (const BlockList& list : to_host_sync<BlockList>(bytes + layout.lists, num_lists)) {
    built.lists.emplace_back(entries.begin() + list.begin,
                             entries.begin() + list.begin + list.count);
  }
  built.order = to_host_sync<std::int32_t>(
      bytes + layout.order,
      static_cast<std::size_t>(shape.grid.heads_kv) * static_cast<std::size_t>(shape.grid.num_q()));
  return built;
}

/// Each (kv head, q block) once, section after section, by falling length inside each.
void expect_order(const BlockListShape& shape, const BuiltLists& built) {
  const BlockGrid& grid = shape.grid;
  const std::int32_t section = shape.section_heads * grid.num_q();
  const std::int32_t shift = length_shift(grid.num_k());
  std::vector<std::int32_t> sorted = built.order;
  std::sort(sorted.begin(), sorted.end());
  std::int32_t before = 0;
  for (std::int32_t i = 0; i < std::int32_t(built.order.size()); ++i) {
    ASSERT_EQ(sorted[static_cast<std::size_t>(i)], i);
    const std::int32_t task = built.order[static_cast<std::size_t>(i)];
    ASSERT_EQ(task / section, i / section);
    const std::int32_t list = grid.list_of(task / grid.num_q(), task % grid.num_q());
    const auto length = std::int32_t(built.lists[static_cast<std::size_t>(list)].size());
    const std::int32_t bucket = length_bucket(length, shift);
    ASSERT_LE(i % section == 0 ? 0 : before, bucket);
    before = bucket;
  }
}

TEST_F(BlockListsTest, EqualTheHostsLists) {
  for (RandomStream& random : testing::RandomStreams(100)) {
    BlockListShape shape;
    shape.grid = {.rows_q = random.between(1, 3000),
                  .rows_k = random.between(1, 9000),
                  .q_block = random.between(1, 256),
                  .k_block = random.between(16, 256),
                  .heads_kv = random.between(1, 4),
                  .is_causal = random.chance(50)};
    shape.grid.mask_heads = random.chance(50) ? shape.grid.heads_kv : 1;
    shape.section_heads = random.between(1, 2);
    std::vector<std::uint8_t> visible(static_cast<std::size_t>(shape.grid.num_lists()) *
                                      static_cast<std::size_t>(shape.grid.num_k()));
    const std::int32_t percent = random.between(0, 100);
    const std::int32_t times = random.chance(30) ? 5 : 1;
    for (std::uint8_t& value : visible) {
      value = static_cast<std::uint8_t>(random.chance(percent) ? random.between(1, times) : 0);
    }
    const auto expected = host_lists(shape.grid, visible);
    for (const auto& list : expected) shape.max_entries += std::int64_t(list.size());
    const BuiltLists built = build_sync(shape, visible);
    ASSERT_EQ(num_beyond(built.header, shape), 0);
    ASSERT_EQ(built.lists, expected);
    ASSERT_NO_FATAL_FAILURE(expect_order(shape, built));
  }
}

TEST_F(BlockListsTest, CountWhatHasNoRoom) {
  BlockListShape shape;
  shape.grid = {.rows_q = 640, .rows_k = 6400};
  const std::vector<std::uint8_t> visible(10 * 100, 1);
  shape.max_entries = 1000;
  EXPECT_EQ(num_beyond(build_sync(shape, visible).header, shape), 0);
  shape.max_entries = 990;
  EXPECT_EQ(num_beyond(build_sync(shape, visible).header, shape), 10);
  shape.max_entries = 1000;
  shape.max_runs = 10;
  EXPECT_EQ(num_beyond(build_sync(shape, visible).header, shape), 0);
  shape.max_runs = 7;
  EXPECT_EQ(num_beyond(build_sync(shape, visible).header, shape), 3);
  std::vector<std::uint8_t> bad = visible;
  bad[555] = 255;
  shape.max_entries = 1 << 20;
  shape.max_runs = 0;
  EXPECT_EQ(num_beyond(build_sync(shape, bad).header, shape), 1);
}

TEST_F(BlockListsTest, TellWithoutQueriesThatNothingIsBeyond) {
  const BlockListShape shape{.grid = {.rows_q = 0, .rows_k = 640}};
  const BlockListLayout layout = block_list_layout(shape);
  const DeviceBuffer workspace(layout.size_bytes), word(2 * sizeof(std::int64_t));
  word.fill(0x11, nullptr);
  build_block_lists(shape, layout, {nullptr, static_cast<std::int64_t*>(word.data())},
                    workspace.data(), nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  EXPECT_EQ(to_host_sync<std::int64_t>(word.data(), 2), (std::vector<std::int64_t>{0, -1}));
}

}  // namespace
}  // namespace magi::test
