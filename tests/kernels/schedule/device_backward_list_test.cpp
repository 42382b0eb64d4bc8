// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/device/device_backward_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>

#include "magi/error.hpp"
#include "support/gpu/device_slices.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

using DeviceBackwardListTest = GpuTest;

constexpr int kPoison = 0xff;

struct BuiltList {
  DeviceBackwardHeader header;
  std::vector<KeyTile> tiles;
  std::vector<KeyRecord> records;
  std::vector<SemaphoreRun> runs;
  std::vector<std::int32_t> tile_components;
  std::vector<TileSemaphores> tile_semaphores;
  std::vector<std::int32_t> converted_tiles;
  std::vector<std::int32_t> items;
  std::vector<TileSpan> frame;
  SeenRows seen;
  std::int64_t run_capacity = 0;
};

template <typename Value>
std::vector<Value> part_sync(const DeviceBuffer& workspace, std::size_t begin, std::int64_t count) {
  return to_host_sync<Value>(static_cast<const std::byte*>(workspace.data()) + begin,
                             static_cast<std::size_t>(count));
}

/// Builds in a workspace full of poison.
BuiltList build_sync(DeviceBackwardShape shape, const DeviceSlices& slices) {
  if (shape.record_capacity == 0) shape.record_capacity = default_record_capacity(shape);
  const DeviceBackwardLayout layout = device_backward_layout(shape);
  const DeviceBuffer workspace(layout.size_bytes);
  workspace.fill(kPoison, nullptr);
  const SliceArrays arrays{static_cast<const std::int32_t*>(slices.q_ranges.data),
                           static_cast<const std::int32_t*>(slices.k_ranges.data),
                           static_cast<const std::int32_t*>(slices.types.data), shape.num_slices};
  build_device_backward_list(shape, layout, arrays, workspace.data(), nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  BuiltList list;
  list.run_capacity = layout.run_capacity;
  list.header = part_sync<DeviceBackwardHeader>(workspace, 0, 1).front();
  const BackwardOutcome& outcome = list.header.outcome;
  if (outcome.is_overflowing != 0) return list;
  list.tiles = part_sync<KeyTile>(workspace, layout.tiles, outcome.num_tiles);
  list.records = part_sync<KeyRecord>(workspace, layout.records, outcome.num_records);
  list.runs = part_sync<SemaphoreRun>(workspace, layout.runs, list.header.num_runs);
  list.tile_components =
      part_sync<std::int32_t>(workspace, layout.tile_components, layout.frame.num_q_tiles());
  list.tile_semaphores =
      part_sync<TileSemaphores>(workspace, layout.tile_semaphores, layout.frame.num_q_tiles());
  list.converted_tiles =
      part_sync<std::int32_t>(workspace, layout.converted_tiles, layout.frame.num_q_tiles());
  // Of the two main kernels one has no items.
  list.items = part_sync<std::int32_t>(workspace, layout.items,
                                       outcome.num_items + list.header.unordered.num_items);
  list.frame = layout.frame.spans;
  const BackwardProblem& problem = shape.problem;
  list.seen.queries =
      part_sync<std::uint32_t>(workspace, layout.seen_queries, num_seen_words(problem.rows_q));
  list.seen.keys =
      part_sync<std::uint32_t>(workspace, layout.seen_keys, num_seen_words(problem.rows_k));
  return list;
}

std::vector<SemaphoreRun> runs_of(const std::vector<SemaphoreRun>& runs, const KeyRecord& record) {
  return {runs.begin() + record.run_begin, runs.begin() + record.run_end};
}

/// Whether the sums of q tiles are cleared first, and made into dq by the main kernel.
void expect_same_sums(const BuiltList& device, const BackwardList& host) {
  ASSERT_EQ(device.header.outcome.is_ordered, host.is_ordered ? 1 : 0);
  for (std::size_t i = 0; i < host.tile_components.size(); ++i) {
    const std::int32_t components = host.tile_components[i];
    const bool is_shared = !host.is_ordered && components == 1;
    ASSERT_EQ(device.tile_components[i], is_shared ? 2 : components) << "q tile " << i;
    if (host.is_ordered && components > 0) {
      ASSERT_EQ(device.tile_semaphores[i], host.tile_semaphores[i]) << "q tile " << i;
    }
    const bool is_left = !host.is_converting || std::ranges::binary_search(host.left_tiles, i);
    ASSERT_EQ(device.converted_tiles[i], is_left ? 0 : 1) << "q tile " << i;
  }
}

/// Whether tiles, their records and the runs of these are the host's, wherever they lie.
void expect_same_tiles(const BuiltList& device, const BackwardList& host) {
  for (std::size_t i = 0; i < host.tiles.size(); ++i) {
    const KeyTile& tile = device.tiles[i];
    const KeyTile& other = host.tiles[i];
    ASSERT_EQ(tile.key_begin, other.key_begin) << "place " << i;
    ASSERT_EQ(tile.key_end, other.key_end) << "place " << i;
    ASSERT_EQ(tile.record_end - tile.record_begin, other.record_end - other.record_begin);
    for (std::int32_t j = 0; j < tile.record_end - tile.record_begin; ++j) {
      const KeyRecord& record = device.records[static_cast<std::size_t>(tile.record_begin + j)];
      const KeyRecord& host_record = host.records[static_cast<std::size_t>(other.record_begin + j)];
      ASSERT_EQ(record.band, host_record.band) << "place " << i << ", record " << j;
      if (!host.is_ordered) continue;
      ASSERT_EQ(runs_of(device.runs, record), runs_of(host.semaphore_runs, host_record))
          << "place " << i << ", record " << j;
    }
  }
}

/// Whether the bits of all rows are the host's.
void expect_same_bits(const std::vector<std::uint32_t>& device,
                      const std::vector<std::uint32_t>& host, std::int32_t rows) {
  for (std::int32_t row = 0; row < rows; ++row) {
    const auto word = static_cast<std::size_t>(row / kSeenBits);
    const auto bit_of = [&](const auto& words) { return words[word] >> row % kSeenBits & 1; };
    ASSERT_EQ(bit_of(device), host.empty() ? 1u : bit_of(host)) << "row " << row;
  }
}

/// Whether the device's list is the host's but for the places of k tiles, records and runs.
void expect_same_list(const DeviceBackwardShape& shape, const BuiltList& device,
                      const BackwardList& host) {
  if (host.is_ordered && std::ssize(host.semaphore_runs) > device.run_capacity) {
    ASSERT_EQ(device.header.outcome.is_overflowing, 1);
    ASSERT_EQ(device.header.outcome.num_items, 0);
    return;
  }
  ASSERT_EQ(device.header.outcome.is_overflowing, 0);
  ASSERT_EQ(device.tiles.size(), host.tiles.size());
  expect_same_sums(device, host);
  expect_same_tiles(device, host);
  const bool has_unseen = !host.seen.queries.empty() || !host.seen.keys.empty();
  ASSERT_EQ(device.header.outcome.has_unseen, has_unseen ? 1 : 0);
  expect_same_bits(device.seen.queries, host.seen.queries, shape.problem.rows_q);
  expect_same_bits(device.seen.keys, host.seen.keys, shape.problem.rows_k);
  ASSERT_EQ(device.items.size(), static_cast<std::size_t>(host.num_items()));
  std::int32_t last_span = 0;  // as the main kernel searches
  for (std::int64_t i = 0; i < host.num_items(); ++i) {
    const BackwardItem item = host.item(i);
    const std::int32_t place = device.items[static_cast<std::size_t>(i)];
    const BackwardItem found = backward_item(device.frame.data(), shape.problem.heads_kv,
                                             static_cast<std::uint32_t>(place), last_span);
    last_span = found.span;
    ASSERT_EQ(std::tuple(found.tile, found.kv_head, found.split),
              std::tuple(item.tile, item.kv_head, item.split))
        << "item " << i;
    ASSERT_EQ(device.frame[static_cast<std::size_t>(found.span)].num_splits,
              host.spans[static_cast<std::size_t>(item.span)].num_splits)
        << "item " << i;
  }
}

/// With clusters and without.
void expect_hosts_list(DeviceBackwardShape shape, const TypedRanges& ranges) {
  const std::vector<BandSlice> bands = ranges.bands(shape.problem.rows_q, shape.problem.rows_k);
  const BackwardList host = build_backward_list(shape.problem, bands, shape.tile,
                                                {.packed_heads = shape.packed_heads,
                                                 .is_deterministic = !shape.may_be_unordered,
                                                 .is_plain = true});
  for (const bool has_clusters : {true, false}) {
    SCOPED_TRACE(has_clusters ? "clusters" : "no clusters");
    shape.has_clusters = has_clusters;
    expect_same_list(shape, build_sync(shape, DeviceRanges(ranges).view()), host);
  }
}

DeviceBackwardShape shape_of(const BackwardProblem& problem, const TypedRanges& ranges) {
  DeviceBackwardShape shape;
  shape.problem = problem;
  shape.num_slices = static_cast<std::int32_t>(ranges.count());
  shape.packed_heads = plain_packed_heads(problem, shape.num_slices);
  return shape;
}

BackwardProblem random_problem(RandomStream& random) {
  const std::int32_t largest = random.chance(20) ? 20000 : 900;
  return {.rows_q = random.between(1, largest),
          .rows_k = random.between(1, largest),
          .heads_q = 2 << random.between(0, 4),
          .heads_kv = 2,
          .num_ctas = random.between(1, 132)};
}

TEST_F(DeviceBackwardListTest, EqualsTheHostsPlainList) {
  for_each_random_stream([](RandomStream& random) {
    const BackwardProblem problem = random_problem(random);
    const std::int32_t count = random.between(0, random.chance(20) ? 400 : 40);
    const TypedRanges ranges = random_ranges(random, problem.rows_q, problem.rows_k, count);
    DeviceBackwardShape shape = shape_of(problem, ranges);
    if (random.chance(30)) shape.packed_heads = 1;
    shape.may_be_unordered = random.chance(50);
    if (random.chance(30)) shape.tile = {.rows = 128, .keys = 128, .overhead = 2};
    if (random.chance(20)) shape.tile.keys = 64;
    expect_hosts_list(shape, ranges);
  });
}

/// Packed documents of a kind, which are components of their own.
TEST_F(DeviceBackwardListTest, EqualsTheHostsOfDocuments) {
  for_each_random_stream([](RandomStream& random) {
    BackwardProblem problem = random_problem(random);
    problem.rows_k = problem.rows_q;
    const std::int32_t most = random.between(1, 900);
    TypedRanges ranges;
    for (std::int32_t begin = 0; begin < problem.rows_q;) {
      const std::int32_t end = std::min(begin + random.between(1, most), problem.rows_q);
      if (random.chance(90)) ranges.append({begin, end}, {begin, end}, random.between(0, 1));
      begin = end;
    }
    expect_hosts_list(shape_of(problem, ranges), ranges);
  });
}

/// Each k tile of a slice of one diagonal is a component: there are more of these than slices.
TEST_F(DeviceBackwardListTest, EqualsTheHostsOfSingleDiagonals) {
  for (const std::int32_t count : {1, 3, 17}) {
    SCOPED_TRACE(::testing::Message() << count << " diagonals");
    constexpr std::int32_t kRows = 3000;
    const BackwardProblem problem{
        .rows_q = kRows * count, .rows_k = kRows, .heads_q = 8, .heads_kv = 1, .num_ctas = 132};
    TypedRanges ranges;
    for (std::int32_t i = 0; i < count; ++i) {
      ranges.append({i * kRows, i * kRows + kRows - i}, {i, kRows}, 3);
    }
    expect_hosts_list(shape_of(problem, ranges), ranges);
  }
}

TEST_F(DeviceBackwardListTest, JoinsWhatTheHostJoins) {
  for_each_random_stream([](RandomStream& random) {
    const BackwardProblem problem = random_problem(random);
    const std::int32_t keys = random.between(1, 5);
    const std::int32_t rows = random.between(1, random.chance(80) ? 12 : 160);
    const auto cut = [](std::int32_t all, std::int32_t parts, std::int32_t i) {
      return static_cast<std::int32_t>(std::int64_t{all} * i / parts);
    };
    TypedRanges ranges;
    for (std::int32_t i = 0; i < rows * keys; ++i) {
      if (random.chance(10)) continue;
      const std::int32_t q = i % rows, k = i / rows;
      ranges.append({cut(problem.rows_q, rows, q), cut(problem.rows_q, rows, q + 1)},
                    {cut(problem.rows_k, keys, k), cut(problem.rows_k, keys, k + 1)},
                    random.chance(80) ? 0 : random.between(0, 3));
    }
    expect_hosts_list(shape_of(problem, ranges), ranges);
  });
}

/// k tiles that the whole device sorts, and more, which one cluster does.
TEST_F(DeviceBackwardListTest, HoldsForLongRowsAndManySlices) {
  constexpr std::int32_t kRows = 1 << 17;
  const BackwardProblem problem{
      .rows_q = kRows, .rows_k = kRows, .heads_q = 8, .heads_kv = 1, .num_ctas = 132};
  for (const int count : {4000, 9000}) {
    TypedRanges ranges;
    for (RandomStream& random : testing::RandomStreams(count)) ranges.append_few(random, kRows);
    expect_hosts_list(shape_of(problem, ranges), ranges);
    ranges.append({0, kRows}, {0, kRows}, 1);
    expect_hosts_list(shape_of(problem, ranges), ranges);
  }
}

/// As many k tiles as the whole device sorts, and one more. Most of them tie in steps.
TEST_F(DeviceBackwardListTest, HoldsAtTheMostTilesThatTheDeviceSorts) {
  constexpr std::int32_t kLength = 40;
  for (const std::int32_t num_tiles : {kMostRankedKeys, kMostRankedKeys + 1}) {
    const std::int32_t rows = 1 << 18;
    const std::int32_t count = num_tiles - rows / 128;
    const BackwardProblem problem{
        .rows_q = rows, .rows_k = rows, .heads_q = 8, .heads_kv = 2, .num_ctas = 132};
    TypedRanges ranges;
    for (std::int32_t i = 0; i < count; ++i) {
      const Range rows_of{i * kLength, (i + 1) * kLength - (i % 100 == 0 ? 7 : 0)};
      ranges.append(rows_of, rows_of, 1);
    }
    const DeviceBackwardShape shape = shape_of(problem, ranges);
    ASSERT_EQ(device_backward_layout(shape).max_tiles, num_tiles);
    expect_hosts_list(shape, ranges);
  }
}

/// Rows of several groups, so many that a group has more rows than a block has threads, and keys
/// that a cluster cuts. Components begin and end at the groups' borders and reach over some.
TEST_F(DeviceBackwardListTest, FindsComponentsOverGroupsOfRows) {
  for (const std::int32_t rows : {1000, 1 << 18, 600'001}) {
    SCOPED_TRACE(::testing::Message() << rows << " rows");
    const BackwardProblem problem{
        .rows_q = rows, .rows_k = rows, .heads_q = 8, .heads_kv = 1, .num_ctas = 132};
    RandomStream random(11);
    TypedRanges ranges;
    for (std::int32_t begin = 0; begin < rows;) {
      const std::int32_t rest = random.chance(30) ? 1024 - begin % 1024 : random.between(1, 4000);
      const std::int32_t end = std::min(begin + rest, rows);
      if (random.chance(70)) ranges.append({begin, end}, {begin, end}, random.between(0, 1));
      begin = end;
    }
    expect_hosts_list(shape_of(problem, ranges), ranges);
  }
}

TEST_F(DeviceBackwardListTest, HoldsWithoutSlicesAndForMoreThanAreJoined) {
  const BackwardProblem problem{
      .rows_q = 5000, .rows_k = 5000, .heads_q = 4, .heads_kv = 4, .num_ctas = 132};
  expect_hosts_list(shape_of(problem, {}), {});
  TypedRanges ranges;
  ranges.append({0, 5000}, {0, 5000}, 0);
  expect_hosts_list(shape_of(problem, ranges), ranges);
  for (RandomStream& random : testing::RandomStreams(3000)) {
    ranges.append({random.between(0, 2000), 5000}, {random.between(0, 200), 300},
                  random.between(0, 3));
  }
  expect_hosts_list(shape_of(problem, ranges), ranges);
}

TEST_F(DeviceBackwardListTest, NamesTheFirstBadSliceAndTellsOfMissingRoom) {
  const BackwardProblem problem{
      .rows_q = 3000, .rows_k = 2000, .heads_q = 8, .heads_kv = 1, .num_ctas = 132};
  RandomStream random(9);
  for (int round = 0; round < 20; ++round) {
    TypedRanges ranges = random_ranges(random, problem.rows_q, problem.rows_k, 200);
    const std::int32_t bad = random.between(0, 199);
    ranges.k_ranges[static_cast<std::size_t>(2 * bad + 1)] =
        round % 2 == 0 ? std::numeric_limits<std::int32_t>::max() : 2001;
    for (std::int32_t i = bad + 1; i < 200; i += random.between(1, 9)) {
      ranges.types[static_cast<std::size_t>(i)] = random.between(-2, 5);
    }
    expect_hosts_list(shape_of(problem, ranges), ranges);
    DeviceBackwardShape shape = shape_of(problem, ranges);
    BuiltList list = build_sync(shape, DeviceRanges(ranges).view());
    ASSERT_NE(list.header.bad_slice, 0u);
    ASSERT_EQ(bad_slice_of(list.header.bad_slice).index, bad);
    ASSERT_EQ(bad_slice_of(list.header.bad_slice).field, SliceField::KEnd);
    shape.record_capacity = list.header.outcome.num_records - 1;
    const std::int64_t num_records = list.header.outcome.num_records;
    list = build_sync(shape, DeviceRanges(ranges).view());
    ASSERT_EQ(list.header.outcome.is_overflowing, 1);
    ASSERT_EQ(list.header.outcome.num_items, 0);
    ASSERT_EQ(list.header.outcome.num_records, num_records);
  }
}

}  // namespace
}  // namespace magi::test
