// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "magi/error.hpp"
#include "plan/placement/evaluate.hpp"
#include "plan/placement/placement_cases.hpp"
#include "support/random_streams.hpp"

namespace magi::testing {
namespace {

Placement random_layout(RandomStream& random, std::int32_t rows) {
  const std::int32_t chunk = random.between(1, 12);
  const std::int32_t ranks = random.between(1, 5);
  std::vector<std::int32_t> chunk_rank(static_cast<std::size_t>((rows + chunk - 1) / chunk));
  for (std::int32_t& rank : chunk_rank) rank = random.between(0, ranks - 1);
  return placement_from_chunks(rows, chunk, ranks, chunk_rank);
}

TEST(PlacementCost, EqualsBruteForceOnRandomMasks) {
  for (RandomStream& random : RandomStreams(300)) {
    Mask mask = random_square_mask(random, 1, 70);
    const Placement placement = random_layout(random, mask.rows_q + random.between(0, 9));
    const PlacementCost cost = placement_cost(mask, placement);
    const PlacementCost expected = brute_cost(mask, placement);
    EXPECT_EQ(cost.area, expected.area);
    EXPECT_EQ(cost.remote_rows, expected.remote_rows);
    const std::int64_t heaviest = *std::max_element(cost.area.begin(), cost.area.end());
    const std::int64_t total = std::accumulate(cost.area.begin(), cost.area.end(), std::int64_t{0});
    if (total > 0) {
      EXPECT_DOUBLE_EQ(cost.balance * static_cast<double>(total),
                       static_cast<double>(heaviest * placement.num_ranks));
    } else {
      EXPECT_EQ(cost.balance, 1.0);
    }
    const ChunkTable table = make_chunk_table(mask, placement.num_rows, placement.chunk_size);
    const AssignmentCost sum = evaluate(table, placement.chunk_rank, placement.num_ranks);
    EXPECT_EQ(sum.largest_area, heaviest);
    EXPECT_EQ(sum.remote_rows,
              std::accumulate(cost.remote_rows.begin(), cost.remote_rows.end(), std::int64_t{0}));
  }
}

TEST(PlacementCost, CountsKeysBeyondTheQueriesAsRemote) {
  const Mask mask{8, 20, {band_slice({0, 8}, {0, 20}, MaskType::Full)}};
  const PlacementCost cost = placement_cost(mask, placement_from_chunks(8, 4, 2, {0, 1}));
  EXPECT_EQ(cost.remote_rows, (std::vector<std::int64_t>{16, 16}));
  EXPECT_EQ(cost.area, (std::vector<std::int64_t>{80, 80}));
}

TEST(PlacementCost, RefusesAPlacementShorterThanTheMask) {
  const Mask mask = document_mask({9}, MaskType::Causal);
  EXPECT_THROW(placement_cost(mask, placement_from_chunks(8, 4, 2, {0, 1})), InvalidArgument);
}

TEST(PlacementCost, RefusesMasksThatLeaveTheirRowsOrInt64) {
  const Placement placement = placement_from_chunks(8, 4, 2, {0, 1});
  EXPECT_THROW(placement_cost({8, 8, {{0, 9, 0, 8}}}, placement), InvalidArgument);
  EXPECT_THROW(placement_cost({8, 8, {{-4, 4, 0, 8}}}, placement), InvalidArgument);
  const Mask huge{kMaxRows, kMaxRows, std::vector<BandSlice>(9, {0, kMaxRows, 0, kMaxRows})};
  const Placement halves = placement_from_chunks(kMaxRows, kMaxRows / 2 + 1, 2, {0, 1});
  EXPECT_THROW(placement_cost(huge, halves), InvalidArgument);
  EXPECT_THROW(place(huge, 2, {.min_chunks_per_rank = 1, .uneven_shard = true}), InvalidArgument);
}

TEST(ChunkTable, MergesWhatAChunkSees) {
  Mask mask = document_mask({5, 7}, MaskType::Causal);
  mask.slices.push_back(band_slice({8, 12}, {0, 2}, MaskType::Full));
  const ChunkTable table = make_chunk_table(mask, 16, 4);
  EXPECT_EQ(table.num_chunks(), 4);
  EXPECT_EQ(table.area, (std::vector<std::int64_t>{10, 5 + 6, 22 + 8, 0}));
  EXPECT_EQ(table.key_begin, (std::vector<std::int32_t>{0, 1, 2, 4, 4}));
  EXPECT_EQ(table.keys, (std::vector<Range>{{0, 4}, {0, 8}, {0, 2}, {5, 12}}));
}

TEST(CrossingRows, AreThoseOfNodesInPlaceOfRanks) {
  for (RandomStream& random : RandomStreams(100)) {
    const Mask mask = random_square_mask(random, 1, 70);
    const Placement placement = random_layout(random, mask.rows_q);
    const std::int32_t node = random.between(1, 3);
    Placement nodes = placement;
    nodes.num_ranks = (placement.num_ranks + node - 1) / node;
    for (std::int32_t& rank : nodes.chunk_rank) rank /= node;
    EXPECT_EQ(crossing_rows(mask, placement, node), brute_cost(mask, nodes).remote_rows);
    EXPECT_EQ(crossing_rows(mask, placement, 1), placement_cost(mask, placement).remote_rows);
  }
  const Mask mask = document_mask({8}, MaskType::Causal);
  const Placement halves = placement_from_chunks(8, 4, 2, {0, 1});
  EXPECT_EQ(crossing_rows(mask, halves, std::numeric_limits<std::int32_t>::max()),
            std::vector<std::int64_t>{0})
      << "one node that could hold any number of ranks";
  EXPECT_THROW(crossing_rows({}, {}, 0), InvalidArgument);
}

}  // namespace
}  // namespace magi::testing
