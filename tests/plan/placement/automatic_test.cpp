// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/automatic.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "magi/error.hpp"
#include "plan/placement/evaluate.hpp"
#include "plan/placement/placement_cases.hpp"
#include "support/random_streams.hpp"

namespace magi::testing {
namespace {

struct Quality {
  std::int64_t rows = 0;
  double balance = 1.0;
};

Quality quality(const Mask& mask, std::int32_t ranks, PlacementAlgorithm algorithm,
                double tolerance = 0.0) {
  PlacementConfig config;
  config.algorithm = algorithm;
  config.min_chunks_per_rank = 16;
  config.token_tolerance = tolerance;
  const PlacementCost cost = placement_cost(mask, place(mask, ranks, config));
  return {std::accumulate(cost.remote_rows.begin(), cost.remote_rows.end(), std::int64_t{0}),
          cost.balance};
}

Mask long_documents(std::uint64_t seed, MaskType type) {
  RandomStream random(seed);
  return document_mask(random_lengths(random, 8192), type);
}

TEST(AutoPlacement, IsNeverWorseThanMinHeapInBoth) {
  for (RandomStream& random : RandomStreams(100)) {
    const Mask mask = random_square_mask(random, 1, 200);
    const std::int32_t ranks = random.between(2, 6);
    const Quality heap = quality(mask, ranks, PlacementAlgorithm::MinHeap);
    for (const auto algorithm : {PlacementAlgorithm::Auto, PlacementAlgorithm::Thorough}) {
      const Quality found = quality(mask, ranks, algorithm);
      EXPECT_TRUE(found.rows < heap.rows || found.balance < heap.balance ||
                  (found.rows == heap.rows && found.balance == heap.balance))
          << placement_name(algorithm) << ' ' << found.rows << ' ' << found.balance << " heap "
          << heap.rows << ' ' << heap.balance;
    }
  }
}

TEST(AutoPlacement, MovesLessThanTwoThirdsOfMinHeapOnDocuments) {
  for (const MaskType type : {MaskType::Causal, MaskType::Full, MaskType::InverseCausal}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(std::to_string(static_cast<int>(type)) + ", seed " + std::to_string(seed));
      const Mask mask = long_documents(seed, type);
      const Quality heap = quality(mask, 8, PlacementAlgorithm::MinHeap);
      const Quality fast = quality(mask, 8, PlacementAlgorithm::Auto);
      const Quality slow = quality(mask, 8, PlacementAlgorithm::Thorough);
      const Quality tolerant = quality(mask, 8, PlacementAlgorithm::Auto, 0.5);
      EXPECT_LT(3 * fast.rows, 2 * heap.rows);
      EXPECT_LE(fast.balance, 1.03);
      EXPECT_LE(slow.rows, fast.rows);
      EXPECT_LE(slow.balance, 1.02);
      EXPECT_LE(tolerant.balance, 1.03);
    }
  }
}

TEST(AutoPlacement, ServesPrefixTreesAndGlobalTokens) {
  // A shared prefix of 1024 rows that all branches see, and windows with 64 global rows.
  Mask tree = document_mask(std::vector<std::int32_t>(8, 1024), MaskType::Causal);
  tree.slices.push_back(band_slice({1024, 8192}, {0, 1024}, MaskType::Full));
  Mask global{8192, 8192, {{0, 8192, 0, 8192, -200, 0}, {0, 8192, 0, 64, -kBandInfinity, -201}}};
  for (const Mask& mask : {tree, global}) {
    const Quality heap = quality(mask, 8, PlacementAlgorithm::MinHeap);
    const Quality fast = quality(mask, 8, PlacementAlgorithm::Auto);
    EXPECT_LT(2 * fast.rows, heap.rows);
    EXPECT_LE(fast.balance, 1.03);
  }
}

TEST(AutoPlacement, UsesClosedForms) {
  PlacementConfig config;
  const Mask causal = document_mask({8192}, MaskType::Causal);
  const Placement found = place(causal, 8, config);
  config.algorithm = PlacementAlgorithm::Zigzag;
  EXPECT_EQ(found, place(causal, 8, config));
  const Mask window{8192, 8192, {{0, 8192, 0, 8192, -63, 0}}};
  config.algorithm = PlacementAlgorithm::Auto;
  const Placement runs = place(window, 8, config);
  config.algorithm = PlacementAlgorithm::SequentialSelect;
  EXPECT_EQ(runs, place(window, 8, config));
}

TEST(AutoPlacement, ServesManyRanks) {
  RandomStream random(3);
  const Mask mask = document_mask(random_lengths(random, 1 << 16), MaskType::Causal);
  const Quality heap = quality(mask, 96, PlacementAlgorithm::MinHeap);
  const Quality fast = quality(mask, 96, PlacementAlgorithm::Auto);
  EXPECT_LT(fast.rows, heap.rows);
  EXPECT_LE(fast.balance, 1.03);
}

TEST(AutoPlacement, PrefersTheNodeByThePriceOfCrossing) {
  PlacementConfig config;
  config.chunk_size = 64;
  for (const auto algorithm : {PlacementAlgorithm::Auto, PlacementAlgorithm::Thorough}) {
    config.algorithm = algorithm;
    std::int64_t per_share_rows = 0;
    std::int64_t node_rows = 0;
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(seed);
      const Mask mask = long_documents(seed, MaskType::Causal);
      const Placement flat = place(mask, 8, config);
      EXPECT_EQ(place(mask, 8, config, {.devices_per_node = 0, .crossing_price = 6}), flat);
      EXPECT_EQ(place(mask, 8, config, {.devices_per_node = 8, .crossing_price = 6}), flat);
      EXPECT_EQ(place(mask, 8, config, {.devices_per_node = 1, .crossing_price = 6}), flat);
      EXPECT_EQ(place(mask, 8, config, {.devices_per_node = 3, .crossing_price = 6}), flat);
      const Placement by_node =
          place(mask, 8, config, {.devices_per_node = 4, .crossing_price = 6});
      const auto price = [&](const Placement& placement) {
        const auto remote = placement_cost(mask, placement).remote_rows;
        const auto crossing = crossing_rows(mask, placement, 4);
        return std::accumulate(remote.begin(), remote.end(), std::int64_t{0}) +
               5 * std::accumulate(crossing.begin(), crossing.end(), std::int64_t{0});
      };
      EXPECT_LE(price(by_node), price(flat));
      EXPECT_LE(placement_cost(mask, by_node).balance,
                std::max(1.02, placement_cost(mask, flat).balance));
      per_share_rows += price(flat);
      node_rows += price(by_node);
    }
    EXPECT_LT(10 * node_rows, 9 * per_share_rows) << placement_name(algorithm);
  }
}

TEST(AutoPlacement, ChoicesKeepTheCountsOfChunksAndDiffer) {
  std::size_t most = 0;
  for (RandomStream& random : RandomStreams(40)) {
    const Mask mask = random_square_mask(random, 60, 250);
    const NodeShape nodes{random.between(1, 4), random.between(1, 40)};
    const std::int32_t ranks = nodes.devices_per_node * random.between(2, 6) + random.between(0, 1);
    const ChunkTable table = make_chunk_table(mask, mask.rows_q, random.between(1, 2));
    const PlacementLimits limits =
        placement_limits(table.num_chunks(), ranks, random.chance(30) ? 0.5 : 0.0);
    const std::vector<Assignment> choices = place_to_choose(table, limits, nodes);
    for (const Assignment& rank_of : choices) {
      std::vector<std::int32_t> counts(static_cast<std::size_t>(ranks));
      for (const std::int32_t rank : rank_of) ++counts.at(static_cast<std::size_t>(rank));
      EXPECT_LE(*std::ranges::max_element(counts), limits.max_chunks);
      EXPECT_EQ(std::ranges::count(choices, rank_of), 1);
    }
    std::vector<Assignment> known = {place_zigzag(table, limits), place_sequential(table, limits),
                                     place_min_heap(table, limits)};
    if (nodes.crossing_price >= 12) known.push_back(place_thorough(table, limits, nodes));
    for (const Assignment& rank_of : known) {
      const bool is_there = std::ranges::find(choices, rank_of) != choices.end();
      EXPECT_TRUE(is_there || choices.size() == 2);  // two: one causal document
    }
    EXPECT_EQ(choices, place_to_choose(table, limits, nodes));
    most = std::max(most, choices.size());
  }
  EXPECT_GT(most, 6u);
}

TEST(AutoPlacement, AChoiceMoreEvenThanRunsSendsMuchLessBetweenNodes) {
  std::int64_t automatic_rows = 0;
  std::int64_t least_rows = 0;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const Mask mask = long_documents(seed, MaskType::Causal);
    const ChunkTable table = make_chunk_table(mask, 8192, 16);
    const PlacementLimits limits = placement_limits(512, 64, 0.0);
    const auto entering = [&](const Assignment& rank_of) {
      const auto rows = crossing_rows(mask, placement_from_chunks(8192, 16, 64, rank_of), 4);
      return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    };
    const std::int64_t area_of_runs = largest_area(table, place_sequential(table, limits), 64);
    std::int64_t least = entering(place_automatic(table, limits, {4, 20}));
    automatic_rows += least;
    for (const Assignment& rank_of : place_to_choose(table, limits, {4, 20})) {
      if (10 * largest_area(table, rank_of, 64) > 9 * area_of_runs) continue;
      least = std::min(least, entering(rank_of));
    }
    least_rows += least;
  }
  EXPECT_LT(3 * least_rows, 2 * automatic_rows);
}

TEST(AutoPlacement, RefusesNodesThatCannotBe) {
  const Mask mask = long_documents(0, MaskType::Causal);
  EXPECT_THROW(place(mask, 4, {}, {.devices_per_node = -1}), InvalidArgument);
  for (const std::int32_t price : {0, 1025}) {
    EXPECT_THROW(place(mask, 4, {}, {.devices_per_node = 2, .crossing_price = price}),
                 InvalidArgument);
  }
}

}  // namespace
}  // namespace magi::testing
