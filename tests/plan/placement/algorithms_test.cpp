// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "plan/placement/placement_cases.hpp"
#include "support/refusal.hpp"

namespace magi::testing {
namespace {

/// Every chunk on one rank, ascending, counts within the cap.
void check_layout(const Placement& placement, std::int32_t max_chunks) {
  std::vector<std::int32_t> sorted = placement.rank_chunks;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::int32_t> all(static_cast<std::size_t>(placement.num_chunks()));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(sorted, all);
  for (std::int32_t r = 0; r < placement.num_ranks; ++r) {
    const auto chunks = placement.chunks_of(r);
    EXPECT_TRUE(std::is_sorted(chunks.begin(), chunks.end()));
    EXPECT_LE(static_cast<std::int32_t>(chunks.size()), max_chunks);
    for (const std::int32_t c : chunks) {
      EXPECT_EQ(placement.chunk_rank[static_cast<std::size_t>(c)], r);
    }
  }
}

PlacementConfig random_config(RandomStream& random, PlacementAlgorithm algorithm) {
  PlacementConfig config;
  config.algorithm = algorithm;
  config.min_chunks_per_rank = random.between(1, 6);
  if (random.chance(50)) config.chunk_size = random.between(1, 9);
  config.uneven_shard = random.chance(40);
  config.token_tolerance = random.chance(40) ? random.between(0, 12) / 8.0 : 0.0;
  config.seed = random();
  return config;
}

TEST(Place, EveryAlgorithmPlacesEveryChunkWithinTheCap) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    RandomStream random(seed);
    const Mask mask = random_square_mask(random, 1, 96);
    const std::int32_t ranks = random.between(1, 7);
    for (const PlacementAlgorithm algorithm : kAllAlgorithms) {
      SCOPED_TRACE(std::string(placement_name(algorithm)) + ", seed " + std::to_string(seed));
      PlacementConfig config = random_config(random, algorithm);
      if (mask.rows_q < ranks) config.uneven_shard = false;
      const std::int32_t chunk = resolve_chunk_size(mask.rows_q, ranks, config);
      if ((mask.rows_q + chunk - 1) / chunk < ranks) config.uneven_shard = false;
      const Placement placement = place(mask, ranks, config);
      const std::int32_t n = placement.num_chunks();
      const std::int32_t even = (n + ranks - 1) / ranks;
      const auto allowed =
          static_cast<std::int32_t>(std::floor((1.0 + config.token_tolerance) * n / ranks));
      check_layout(placement, std::max(even, allowed));
      EXPECT_EQ(placement.chunk_size, chunk);
      if (config.uneven_shard) {
        EXPECT_EQ(placement.num_rows, mask.rows_q);
      } else {
        EXPECT_EQ(placement.num_rows, mask.rows_q + padding_rows(mask.rows_q, ranks, chunk));
        if (config.token_tolerance == 0.0) {
          for (std::int32_t r = 0; r < ranks; ++r) {
            EXPECT_EQ(placement.rows_of(r), placement.num_rows / ranks);
          }
        }
      }
      EXPECT_EQ(placement, place(mask, ranks, config));
    }
  }
}

TEST(Place, KeepsOneRankAndOneChunkPerRank) {
  const Mask mask = document_mask({40, 24}, MaskType::Causal);
  for (const PlacementAlgorithm algorithm : kAllAlgorithms) {
    SCOPED_TRACE(placement_name(algorithm));
    PlacementConfig config;
    config.algorithm = algorithm;
    const Placement one = place(mask, 1, config);
    EXPECT_EQ(one.num_chunks(), 8);
    EXPECT_EQ(one.rows_of(0), 64);
    config.min_chunks_per_rank = 1;
    const Placement single = place(mask, 8, config);
    EXPECT_EQ(single.num_chunks(), 8);
    check_layout(single, 1);
  }
}

TEST(Place, TakesMasksWithoutWork) {
  for (const PlacementAlgorithm algorithm : kAllAlgorithms) {
    SCOPED_TRACE(placement_name(algorithm));
    PlacementConfig config;
    config.algorithm = algorithm;
    const Placement placement = place({60, 60, {}}, 3, config);
    check_layout(placement, 8);
    EXPECT_EQ(placement.rows_of(0), placement.num_rows / 3);
    const Mask half{64, 64, {band_slice({0, 16}, {0, 64}, MaskType::Full)}};
    check_layout(place(half, 4, config), 8);
  }
}

TEST(Place, KeepsAShortLastChunk) {
  const Mask mask = document_mask({61}, MaskType::Causal);
  for (const PlacementAlgorithm algorithm : kAllAlgorithms) {
    SCOPED_TRACE(placement_name(algorithm));
    PlacementConfig config;
    config.algorithm = algorithm;
    config.chunk_size = 4;
    config.min_chunks_per_rank = 5;
    config.uneven_shard = true;
    const Placement placement = place(mask, 3, config);
    EXPECT_EQ(placement.num_chunks(), 16);
    EXPECT_EQ(placement.chunk_rows(15), (Range{60, 61}));
    check_layout(placement, 6);
    EXPECT_EQ(placement.rows_of(0) + placement.rows_of(1) + placement.rows_of(2), 61);
  }
}

TEST(Place, MinHeapGivesTheLaterOfEqualChunksFirst) {
  // Four equal chunks on two ranks: 3 -> 0, 2 -> 1, 1 -> 0, 0 -> 1.
  const Mask mask = document_mask({4, 4, 4, 4}, MaskType::Causal);
  PlacementConfig config;
  config.algorithm = PlacementAlgorithm::MinHeap;
  config.chunk_size = 4;
  config.min_chunks_per_rank = 2;
  EXPECT_EQ(place(mask, 2, config).chunk_rank, (std::vector<std::int32_t>{1, 0, 1, 0}));
}

TEST(Place, ClosedFormsHaveTheirShapes) {
  const Mask mask = document_mask({64}, MaskType::Causal);
  PlacementConfig config;
  config.algorithm = PlacementAlgorithm::SequentialSelect;
  config.min_chunks_per_rank = 2;
  EXPECT_EQ(place(mask, 4, config).chunk_rank, (std::vector<std::int32_t>{0, 0, 1, 1, 2, 2, 3, 3}));
  config.algorithm = PlacementAlgorithm::Zigzag;
  EXPECT_EQ(place(mask, 4, config).chunk_rank, (std::vector<std::int32_t>{0, 1, 2, 3, 3, 2, 1, 0}));
  config.min_chunks_per_rank = 3;
  config.chunk_size = 5;
  config.uneven_shard = true;  // 13 chunks: 4 + 3 + 3 + 3 and runs of one, five in the middle
  config.algorithm = PlacementAlgorithm::SequentialSelect;
  EXPECT_EQ(place(mask, 4, config).rank_begin, (std::vector<std::int32_t>{0, 4, 7, 10, 13}));
  config.algorithm = PlacementAlgorithm::Zigzag;
  EXPECT_EQ(place(mask, 4, config).chunk_rank,
            (std::vector<std::int32_t>{0, 1, 2, 3, 3, 2, 1, 0, 0, 3, 2, 1, 0}));
}

TEST(Place, RandomSelectFollowsItsSeed) {
  const Mask mask = document_mask({256}, MaskType::Causal);
  PlacementConfig config;
  config.algorithm = PlacementAlgorithm::RandomSelect;
  const Placement first = place(mask, 4, config);
  config.seed = 43;
  EXPECT_NE(first, place(mask, 4, config));
}

template <typename Change>
std::string error_of(const Mask& mask, std::int32_t ranks, Change change) {
  PlacementConfig config;
  change(config);
  return refusal_of([&] { place(mask, ranks, config); });
}

TEST(Place, RefusesBadConfigsByName) {
  const Mask mask = document_mask({64}, MaskType::Causal);
  const auto text = [&](auto change) { return error_of(mask, 4, change); };
  const auto starts = [](const std::string& message, const std::string& name) {
    return message.rfind(name + " is ", 0) == 0 && message.find("; allowed: ") != std::string::npos;
  };
  EXPECT_TRUE(starts(text([](auto& c) { c.token_tolerance = -0.1; }), "token_tolerance"));
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(starts(text([&](auto& c) { c.token_tolerance = infinity; }), "token_tolerance"));
  EXPECT_TRUE(starts(text([](auto& c) { c.chunk_size = 0; }), "chunk_size"));
  EXPECT_TRUE(starts(text([](auto& c) { c.min_chunks_per_rank = 0; }), "min_chunks_per_rank"));
  EXPECT_TRUE(starts(error_of(mask, 0, [](auto&) {}), "num_ranks"));
  EXPECT_TRUE(starts(error_of({0, 0, {}}, 1, [](auto&) {}), "query rows"));
  const auto uneven = [](auto& c) { c.uneven_shard = true; };
  EXPECT_TRUE(starts(error_of(mask, 65, uneven), "num_ranks"));
  const auto unknown = [](auto& c) { c.algorithm = static_cast<PlacementAlgorithm>(99); };
  EXPECT_TRUE(starts(error_of(mask, 4, unknown), "placement algorithm"));
}

}  // namespace
}  // namespace magi::testing
