// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/backward_arrivals.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/schedule/backward_problem.hpp"
#include "kernels/schedule/expand_backward_list.hpp"
#include "kernels/schedule/item_walk.hpp"
#include "magi/error.hpp"
#include "mask/random_mask.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

/// Parts of random sources with random gaps.
InFlightKeys random_in_flight(RandomStream& random, std::int32_t rows_k, std::int32_t heads_kv) {
  InFlightKeys coming{.num_sources = random.between(1, 7),
                      .num_sections = random.chance(50) ? 1 : heads_kv};
  std::int32_t row = random.between(0, rows_k);
  while (row < rows_k) {
    const std::int32_t end = random.between(row + 1, rows_k);
    coming.parts.push_back({{row, end}, random.between(0, coming.num_sources - 1)});
    row = end + (random.chance(50) ? random.between(0, 20) : 0);
  }
  return coming;
}

std::uint32_t source_of(const InFlightKeys& coming, std::int32_t row) {
  for (const KeyPart& part : coming.parts) {
    if (row >= part.rows.begin && row < part.rows.end) return std::uint32_t{1} << part.source;
  }
  return 0;
}

/// Whether each tile waits for all rows that are loaded with it and knows its first segment.
void expect_arrivals(const BackwardList& list) {
  const BackwardProblem& problem = list.problem;
  ASSERT_EQ(list.arrivals.size(), list.tiles.size());
  for (std::size_t i = 0; i < list.tiles.size(); ++i) {
    const KeyTile& tile = list.tiles[i];
    const TileArrival& arrival = list.arrivals[i];
    std::uint32_t sources = 0;
    if (list.awaits_keys() && tile.record_begin < tile.record_end) {
      for (std::int32_t row = tile.key_begin; row < tile.key_begin + list.shape.keys; ++row) {
        sources |= source_of(problem.coming, row);
      }
    }
    EXPECT_EQ(arrival.sources, sources) << "tile at " << tile.key_begin;
    const auto first = static_cast<std::size_t>(arrival.first_segment);
    EXPECT_GT(list.segments[first].row_end, tile.key_begin);
    const std::int32_t before = first == 0 ? 0 : list.segments[first - 1].row_end;
    EXPECT_LE(before, tile.key_begin);
  }
}

/// Whether items that wait are one span, go through the arrival chunks one after the other and
/// stand between others.
void expect_order(const BackwardList& list) {
  std::int32_t num_spans = 0;
  for (const TileSpan& span : list.spans) {
    const auto sources = [&](std::int32_t tile) {
      return list.arrivals[static_cast<std::size_t>(tile)].sources;
    };
    const bool is_in_flight = sources(span.tile_begin) != 0;
    for (std::int32_t i = 0; i < span.num_tiles; ++i) {
      ASSERT_EQ(sources(span.tile_begin + i) != 0, is_in_flight);
    }
    if (!is_in_flight) continue;
    ++num_spans;
    const std::int32_t heads = list.problem.coming.heads_per_section(list.problem.heads_kv);
    EXPECT_EQ(heads % span.section_heads, 0);
    std::int32_t section = 0;
    for (std::int32_t i = span.item_begin; i < span.item_end; ++i) {
      const std::int32_t of_item = list.item(i).kv_head / heads;
      EXPECT_GE(of_item, section);
      section = of_item;
    }
  }
  EXPECT_LE(num_spans, 1);
}

TEST(BackwardArrivalsTest, ItemsWaitForAllThatTheyLoadInTheOrderOfArrival) {
  int num_waiting = 0;
  for (RandomStream& random : testing::RandomStreams(1500)) {
    const Mask mask = random_mask(random);
    const std::int32_t group = 1 << random.between(0, 3);
    BackwardProblem problem = problem_of(mask, 4 * group, 4);
    problem.coming = random_in_flight(random, mask.rows_k, problem.heads_kv);
    const BackwardTileShape shape = random_shape(random);
    const BackwardList list =
        build_backward_list(problem, mask.slices, shape, {.is_deterministic = false});
    ASSERT_TRUE(is_list_of(list, mask));
    ASSERT_TRUE(walks_everything_once(list));
    if (problem.coming.empty()) continue;
    ASSERT_TRUE(list.awaits_keys());
    EXPECT_FALSE(list.is_converting);
    expect_arrivals(list);
    expect_order(list);
    num_waiting += std::any_of(list.arrivals.begin(), list.arrivals.end(),
                               [](const TileArrival& tile) { return tile.sources != 0; })
                       ? 1
                       : 0;
  }
  EXPECT_GT(num_waiting, 500);
}

TEST(BackwardArrivalsTest, OrderedListsAreThoseWithoutArrivals) {
  for (RandomStream& random : testing::RandomStreams(300)) {
    const Mask mask = random_mask(random);
    BackwardProblem problem = problem_of(mask, 4, 2);
    const BackwardTileShape shape = random_shape(random);
    const BackwardList plain = build_backward_list(problem, mask.slices, shape);
    problem.coming = random_in_flight(random, mask.rows_k, problem.heads_kv);
    const BackwardList list = build_backward_list(problem, mask.slices, shape);
    ASSERT_FALSE(list.awaits_keys());
    EXPECT_EQ(list.num_late_counters(), 0);
    EXPECT_EQ(list.tiles, plain.tiles);
    EXPECT_EQ(list.spans, plain.spans);
    EXPECT_EQ(list.semaphore_runs, plain.semaphore_runs);
    if (!problem.coming.empty()) expect_arrivals(list);
  }
}

TEST(BackwardArrivalsTest, SegmentsCoverAllRows) {
  const InFlightKeys coming{.parts = {{{10, 20}, 0}, {{20, 25}, 1}, {{40, 50}, 0}},
                            .num_sources = 2};
  EXPECT_EQ(key_segments(coming, 60),
            (std::vector<KeySegment>{{10, -1}, {20, 0}, {25, 1}, {40, -1}, {50, 2}, {60, -1}}));
  EXPECT_EQ(key_segments({}, 60), (std::vector<KeySegment>{{60, -1}}));
  EXPECT_TRUE(key_segments({}, 0).empty());
}

/// Half of the keys come: some of the others are worked at first, and some last.
TEST(BackwardArrivalsTest, OwnKeysComeFirstAndLast) {
  const Mask mask{8192, 16384, {band_slice({0, 8192}, {0, 16384}, MaskType::Causal)}};
  BackwardProblem problem = problem_of(mask, 64, 8);
  problem.num_ctas = 132;
  problem.coming = {.parts = {{{0, 8192}, 0}}, .num_sources = 1, .num_sections = 4};
  const BackwardList list =
      build_backward_list(problem, mask.slices, {}, {.is_deterministic = false});
  EXPECT_EQ(list.arrivals.front().sources, 0U);
  EXPECT_EQ(list.arrivals.back().sources, 0U);
  expect_order(list);
  std::int64_t before = 0;
  for (const TileSpan& span : list.spans) {
    if (list.arrivals[static_cast<std::size_t>(span.tile_begin)].sources != 0) break;
    before += span.item_end - span.item_begin;
  }
  // Every CTA has something to do while nothing has come.
  EXPECT_GE(before, problem.num_ctas);
}

TEST(BackwardArrivalsTest, RefusesPartsOutsideTheKeys) {
  BackwardProblem problem{.rows_q = 10, .rows_k = 10, .heads_q = 2, .heads_kv = 2};
  problem.coming = {.parts = {{{5, 11}, 0}}, .num_sources = 1};
  EXPECT_THROW(build_backward_list(problem, {}, {}), InvalidArgument);
}

}  // namespace
}  // namespace magi::test
