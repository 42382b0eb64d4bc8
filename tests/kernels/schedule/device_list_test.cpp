// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/device/device_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "kernels/schedule/host/split_list.hpp"
#include "magi/error.hpp"
#include "support/gpu/device_slices.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

using DeviceListTest = GpuTest;

constexpr int kPoison = 0xff;

struct BuiltList {
  DeviceListHeader header;
  std::vector<TileWork> works;
  std::vector<SplitTile> split_tiles;
  std::vector<BandRecord> records;
};

/// Builds in a workspace full of poison.
BuiltList build_sync(DeviceListShape shape, const DeviceSlices& slices) {
  if (shape.record_capacity == 0) shape.record_capacity = default_record_capacity(shape);
  const DeviceListLayout layout = device_list_layout(shape);
  const DeviceBuffer workspace(layout.size_bytes);
  workspace.fill(kPoison, nullptr);
  const SliceArrays arrays{static_cast<const std::int32_t*>(slices.q_ranges.data),
                           static_cast<const std::int32_t*>(slices.k_ranges.data),
                           static_cast<const std::int32_t*>(slices.types.data), shape.num_slices};
  build_device_list(shape, layout, arrays, workspace.data(), nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const auto* bytes = static_cast<const std::byte*>(workspace.data());
  BuiltList list;
  list.header = to_host_sync<DeviceListHeader>(bytes, 1).front();
  const ListOutcome& outcome = list.header.outcome;
  list.works =
      to_host_sync<TileWork>(bytes + layout.works, static_cast<std::size_t>(outcome.num_works));
  list.split_tiles = to_host_sync<SplitTile>(bytes + layout.split_tiles,
                                             static_cast<std::size_t>(outcome.num_split_tiles));
  list.records = to_host_sync<BandRecord>(
      bytes + layout.records,
      static_cast<std::size_t>(std::min<std::uint64_t>(
          list.header.num_records, static_cast<std::uint64_t>(shape.record_capacity))));
  return list;
}

/// Whether the device makes the host's list, with clusters and without.
void expect_hosts_list(DeviceListShape shape, const TypedRanges& ranges) {
  const std::vector<BandSlice> bands = ranges.bands(shape.problem.rows_q, shape.problem.rows_k);
  ForwardList host = build_forward_list(shape.problem, bands, shape.tile, shape.packed_heads);
  split_long_tiles(host, shape.split);
  for (const bool has_clusters : {true, false}) {
    SCOPED_TRACE(has_clusters ? "clusters" : "no clusters");
    shape.has_clusters = has_clusters;
    const BuiltList device = build_sync(shape, DeviceRanges(ranges).view());
    ASSERT_EQ(device.header.outcome.packed_heads, host.packed_heads);
    ASSERT_EQ(device.header.outcome.num_slots, host.num_slots());
    ASSERT_EQ(device.header.num_records, host.records.size());
    ASSERT_EQ(device.header.is_overflowing, 0);
    ASSERT_EQ(device.works, host.tiles);
    ASSERT_EQ(device.split_tiles, host.split_tiles);
    ASSERT_EQ(device.records, host.records);
  }
}

DeviceListShape shape_of(const ForwardProblem& problem, const TypedRanges& ranges) {
  DeviceListShape shape;
  shape.problem = problem;
  shape.num_slices = static_cast<std::int32_t>(ranges.count());
  shape.packed_heads = device_packed_heads(problem, shape.tile);
  return shape;
}

ForwardProblem random_problem(RandomStream& random) {
  const std::int32_t largest = random.chance(20) ? 20000 : 900;
  return {.rows_q = random.between(1, largest),
          .rows_k = random.between(1, largest),
          .heads_q = 2 << random.between(0, 4),
          .heads_kv = 2};
}

TEST(DevicePackedHeadsTest, AreTheMost) {
  const auto packed_heads = [](std::int32_t heads_q, std::int32_t heads_kv) {
    return device_packed_heads({.rows_q = 9, .rows_k = 9, .heads_q = heads_q, .heads_kv = heads_kv},
                               {});
  };
  EXPECT_EQ(packed_heads(64, 8), 8);
  EXPECT_EQ(packed_heads(64, 1), 16);
  EXPECT_EQ(packed_heads(12, 2), 2);
  EXPECT_EQ(packed_heads(6, 2), 1);
}

TEST_F(DeviceListTest, EqualsTheHostsListByteForByte) {
  for_each_random_stream([](RandomStream& random) {
    const ForwardProblem problem = random_problem(random);
    const std::int32_t count = random.between(0, random.chance(20) ? 400 : 140);
    const TypedRanges ranges = random_ranges(random, problem.rows_q, problem.rows_k, count);
    DeviceListShape shape = shape_of(problem, ranges);
    if (random.chance(30)) shape.tile = {.rows = 64, .keys = 48, .trimmed_keys = 0};
    const std::vector<std::int32_t> allowed = allowed_packed_heads(problem, shape.tile);
    shape.packed_heads =
        allowed[static_cast<std::size_t>(random.between(0, static_cast<int>(allowed.size()) - 1))];
    shape.split.max_splits = random.chance(50) ? 264 : random.between(0, kMaxSplits);
    if (random.chance(50)) shape.split.min_cost = random.between(1, 8);
    expect_hosts_list(shape, ranges);
  });
}

/// Packed documents: about as many as a small list has slices, and tiles about as many as it has.
TEST_F(DeviceListTest, EqualsTheHostsOfDocuments) {
  for (const std::int32_t count : {1, 13, 33, 127, 128, 129, 300}) {
    for (const std::int32_t rows : {300, 8192, 1280 * 16, 1280 * 16 + 1}) {
      SCOPED_TRACE(::testing::Message() << count << " documents, " << rows << " rows");
      const ForwardProblem problem{.rows_q = rows, .rows_k = rows, .heads_q = 64, .heads_kv = 8};
      TypedRanges ranges;
      for (std::int32_t i = 0; i < count; ++i) {
        const auto begin = static_cast<std::int32_t>(std::int64_t{rows} * i * i / count / count);
        const auto end =
            static_cast<std::int32_t>(std::int64_t{rows} * (i + 1) * (i + 1) / count / count);
        ranges.append({begin, end}, {begin, end}, 1);
      }
      DeviceListShape shape = shape_of(problem, ranges);
      for (const std::int32_t max_splits : {0, 264}) {
        shape.split.max_splits = max_splits;
        expect_hosts_list(shape, ranges);
      }
    }
  }
}

/// Slices cut at common rows and keys, which tiles join again: up to as many as are joined at all,
/// and more.
TEST_F(DeviceListTest, JoinsWhatTheHostJoins) {
  std::size_t num_gaps = 0;
  for_each_random_stream([&](RandomStream& random) {
    const ForwardProblem problem = random_problem(random);
    const std::int32_t rows = random.between(1, 5);
    const std::int32_t keys = random.between(1, random.chance(80) ? 12 : 160);
    const auto cut = [](std::int32_t all, std::int32_t parts, std::int32_t i) {
      return static_cast<std::int32_t>(std::int64_t{all} * i / parts);
    };
    TypedRanges ranges;
    for (std::int32_t i = 0; i < rows * keys; ++i) {
      if (random.chance(10)) continue;
      const std::int32_t q = i % rows, k = i / rows;
      const std::int32_t end = std::min(k + (random.chance(80) ? 1 : random.between(1, 4)), keys);
      ranges.append({cut(problem.rows_q, rows, q), cut(problem.rows_q, rows, q + 1)},
                    {cut(problem.rows_k, keys, k), cut(problem.rows_k, keys, end)},
                    random.chance(80) ? 0 : random.between(0, 3));
    }
    DeviceListShape shape = shape_of(problem, ranges);
    // Parts have records until they are joined: more here than usual room holds.
    shape.record_capacity =
        ranges.count() * forward_list_frame(problem, shape.tile, shape.packed_heads).num_tiles();
    expect_hosts_list(shape, ranges);
    const auto bands = ranges.bands(problem.rows_q, problem.rows_k);
    const ForwardList host = build_forward_list(problem, bands, shape.tile, shape.packed_heads);
    num_gaps += static_cast<std::size_t>(
        std::count(host.records.begin(), host.records.end(), BandRecord{}));
  });
  EXPECT_GT(num_gaps, 0u);
}

TEST_F(DeviceListTest, HoldsForHundredsOfThousandsOfSlices) {
  constexpr std::int32_t kRows = 1 << 20;
  TypedRanges ranges;
  for (RandomStream& random : testing::RandomStreams(300000)) ranges.append_few(random, kRows);
  ranges.append({0, kRows}, {0, kRows}, 1);
  DeviceListShape shape =
      shape_of({.rows_q = kRows, .rows_k = kRows, .heads_q = 8, .heads_kv = 1}, ranges);
  expect_hosts_list(shape, ranges);
  shape.split = {.max_splits = kMaxSplits, .min_cost = 1};
  expect_hosts_list(shape, ranges);
}

/// As many slices as have bins, and one more: of some tiles more than a bin keeps.
TEST_F(DeviceListTest, HoldsAtTheMostSlicesThatHaveBins) {
  constexpr std::int32_t kRows = 4000;
  for (const std::int32_t count : {kMostBinnedSlices, kMostBinnedSlices + 1}) {
    RandomStream random(static_cast<std::uint64_t>(count));
    TypedRanges ranges;
    for (std::int32_t i = 0; i < count; ++i) ranges.append_few(random, kRows);
    DeviceListShape shape =
        shape_of({.rows_q = kRows, .rows_k = kRows, .heads_q = 8, .heads_kv = 1}, ranges);
    ASSERT_EQ(device_list_layout(shape).has_bins, count == kMostBinnedSlices);
    expect_hosts_list(shape, ranges);
    shape.split = {.max_splits = 264, .min_cost = 1};
    expect_hosts_list(shape, ranges);
  }
}

/// As many tiles as the whole device sorts, and one more. Most of them tie in cost.
TEST_F(DeviceListTest, HoldsAtTheMostTilesThatTheDeviceSorts) {
  constexpr std::int32_t kTokens = 16;  // of a tile of eight heads
  for (const std::int32_t num_tiles : {kMostRankedKeys, kMostRankedKeys + 1}) {
    const std::int32_t rows = num_tiles * kTokens;
    TypedRanges ranges;
    for (std::int32_t begin = 0; begin < rows;) {
      const std::int32_t end = std::min(begin + 200 + begin % 7, rows);
      ranges.append({begin, end}, {begin, end}, 1);
      begin = end;
    }
    const DeviceListShape shape =
        shape_of({.rows_q = rows, .rows_k = rows, .heads_q = 8, .heads_kv = 1}, ranges);
    ASSERT_EQ(device_list_layout(shape).grid.num_tiles, num_tiles);
    expect_hosts_list(shape, ranges);
  }
}

TEST_F(DeviceListTest, SortsTilesThatSeeMoreSlicesThanOneWindow) {
  constexpr std::int32_t kRows = 300;
  TypedRanges ranges;
  for (RandomStream& random : testing::RandomStreams(150000)) {
    const bool is_reaching = random.chance(40);
    ranges.append({is_reaching ? random.between(0, 200) : kRows, kRows}, {0, kRows},
                  random.between(0, 3));
  }
  DeviceListShape shape =
      shape_of({.rows_q = kRows, .rows_k = kRows, .heads_q = 2, .heads_kv = 2}, ranges);
  shape.record_capacity = 600000;
  expect_hosts_list(shape, ranges);
  shape.split.max_splits = 264;
  expect_hosts_list(shape, ranges);
}

TEST_F(DeviceListTest, HoldsWithoutSlicesAndWithEqualCosts) {
  const ForwardProblem problem{.rows_q = 5000, .rows_k = 5000, .heads_q = 4, .heads_kv = 4};
  expect_hosts_list(shape_of(problem, {}), {});
  TypedRanges ranges;
  ranges.append({0, 5000}, {0, 5000}, 0);
  expect_hosts_list(shape_of(problem, ranges), ranges);
}

TEST_F(DeviceListTest, NamesTheFirstBadSliceAndUsesClampedRanges) {
  const ForwardProblem problem{.rows_q = 3000, .rows_k = 2000, .heads_q = 8, .heads_kv = 1};
  RandomStream random(9);
  constexpr std::int32_t kLow = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kHigh = std::numeric_limits<std::int32_t>::max();
  for (int round = 0; round < 20; ++round) {
    TypedRanges ranges = random_ranges(random, problem.rows_q, problem.rows_k, 200);
    const std::int32_t bad = random.between(0, 199);
    const auto end_of_pair = static_cast<std::size_t>(2 * bad + 1);
    ranges.k_ranges[end_of_pair] = round % 2 == 0 ? kHigh : 2001;
    for (std::int32_t i = bad + 1; i < 200; i += random.between(1, 9)) {
      ranges.q_ranges[static_cast<std::size_t>(2 * i)] = random.chance(50) ? kLow : -1;
      ranges.types[static_cast<std::size_t>(i)] = random.between(-2, 5);
    }
    expect_hosts_list(shape_of(problem, ranges), ranges);
    const BuiltList list = build_sync(shape_of(problem, ranges), DeviceRanges(ranges).view());
    ASSERT_NE(list.header.bad_slice, 0u);
    ASSERT_EQ(bad_slice_of(list.header.bad_slice).index, bad);
    ASSERT_EQ(bad_slice_of(list.header.bad_slice).field, SliceField::KEnd);
  }
}

}  // namespace
}  // namespace magi::test
