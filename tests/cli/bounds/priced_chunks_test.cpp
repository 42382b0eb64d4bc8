// SPDX-License-Identifier: Apache-2.0
#include "bounds/priced_chunks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "plan/plan_support.hpp"
#include "support/random_streams.hpp"

namespace magi::cli {
namespace {

struct Case {
  ChunkTable table;
  Placement placement;
  PricedChunks chunks;
};

/// `num_chunks` chunks of a random square mask on two ranks.
Case random_case(RandomStream& random, std::int32_t num_chunks) {
  RandomMaskOptions options;
  options.min_rows = options.max_rows_q = options.max_rows_k = 2 * num_chunks;
  options.max_slices = 5;
  options.is_square = true;
  const Mask mask = random_mask(random, options);
  std::vector<std::int32_t> chunk_rank;
  for (std::int32_t c = 0; c < num_chunks; ++c) {
    chunk_rank.push_back(random.between(0, 1));
  }
  Case made;
  made.placement = placement_from_chunks(2 * num_chunks, 2, 2, chunk_rank);
  made.table = make_chunk_table(mask, 2 * num_chunks, 2);
  made.chunks = make_priced_chunks(made.table, made.placement);
  return made;
}

std::vector<std::int32_t> chunks_of(unsigned set, std::int32_t num_chunks) {
  std::vector<std::int32_t> chunks;
  for (std::int32_t c = 0; c < num_chunks; ++c) {
    if ((set >> c & 1) != 0) chunks.push_back(c);
  }
  return chunks;
}

/// Rows that a rank with these chunks fetches, by ranges of rows.
std::int64_t fetched(const ChunkTable& table, const std::vector<std::int32_t>& set) {
  std::vector<Range> needed;
  std::vector<Range> own;
  for (const std::int32_t c : set) {
    const auto keys = table.keys_of(c);
    needed.insert(needed.end(), keys.begin(), keys.end());
    own.push_back(table.rows(c));
  }
  merge_ranges(needed);
  return count_rows(needed) - intersection_rows(needed, own);
}

std::int64_t price_of(const std::vector<std::int32_t>& prices,
                      const std::vector<std::int32_t>& set) {
  std::int64_t sum = 0;
  for (const std::int32_t c : set) sum += prices[static_cast<std::size_t>(c)];
  return sum;
}

TEST(PricedChunks, NoSetFetchesLessThanTheTableSays) {
  constexpr std::int32_t kChunks = 7;
  for (RandomStream& random : testing::RandomStreams(200)) {
    const Case made = random_case(random, kChunks);
    const std::vector<std::int32_t> no_prices(kChunks, 0);
    for (unsigned set = 0; set < 1U << kChunks; ++set) {
      const std::vector<std::int32_t> chunks = chunks_of(set, kChunks);
      std::int64_t counted = 0;
      std::int32_t end = 0;
      for (const std::int32_t chunk : chunks) {
        const auto c = static_cast<std::size_t>(chunk);
        counted += std::max(0, made.chunks.seen_end[c] - std::max(made.chunks.seen_begin[c], end));
        counted -= made.chunks.own_rows[c];
        end = std::max(end, made.chunks.seen_end[c]);
      }
      EXPECT_LE(counted, fetched(made.table, chunks)) << "set " << set;
    }
  }
}

TEST(PricedChunks, NeitherMoreChunksNorMoreAreaThanTheLargestRank) {
  const Mask mask{8, 8, {band_slice({0, 8}, {0, 8}, MaskType::Causal)}};
  const Placement placement = placement_from_chunks(8, 2, 3, {0, 1, 1, 2});
  const auto chunks = make_priced_chunks(make_chunk_table(mask, 8, 2), placement);
  EXPECT_EQ(chunks.max_chunks, 2);
  EXPECT_EQ(chunks.min_chunks, 0);
  EXPECT_EQ(chunks.max_area, 18);  // of rows 2 to 5; the last chunk has 15
}

TEST(CheapestSet, IsTheLeastOfAllSetsWithinTheLimits) {
  constexpr std::int32_t kChunks = 8;
  for (RandomStream& random : testing::RandomStreams(100)) {
    const Case made = random_case(random, kChunks);
    std::vector<std::int32_t> prices;
    for (std::int32_t c = 0; c < kChunks; ++c) {
      prices.push_back(random.between(-8, 8));
    }
    // As many steps as pairs: nothing is rounded.
    const auto steps = static_cast<std::int32_t>(std::max<std::int64_t>(1, made.chunks.max_area));
    CheapestSet cheapest(made.chunks, steps);
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (unsigned set = 0; set < 1U << kChunks; ++set) {
      const std::vector<std::int32_t> chunks = chunks_of(set, kChunks);
      const auto count = static_cast<std::int32_t>(chunks.size());
      if (count < made.chunks.min_chunks || count > made.chunks.max_chunks) continue;
      std::int64_t area = 0;
      std::int64_t value = -price_of(prices, chunks);
      std::int32_t end = 0;
      for (const std::int32_t chunk : chunks) {
        const auto c = static_cast<std::size_t>(chunk);
        area += made.table.area[c];
        value += std::max(0, made.chunks.seen_end[c] - std::max(made.chunks.seen_begin[c], end)) -
                 made.chunks.own_rows[c];
        end = std::max(end, made.chunks.seen_end[c]);
      }
      if (area <= made.chunks.max_area) least = std::min(least, value);
    }
    std::vector<std::int32_t> set;
    EXPECT_EQ(cheapest.value(prices), least);
    EXPECT_EQ(cheapest.find(prices, set), least);
    CheapestSet coarse(made.chunks, 3);
    EXPECT_LE(coarse.value(prices), least);
  }
}

TEST(CheapestSet, NamesASetOfItsValue) {
  for (RandomStream& random : testing::RandomStreams(100)) {
    const Case made = random_case(random, 12);
    std::vector<std::int32_t> prices;
    for (std::int32_t c = 0; c < 12; ++c) {
      prices.push_back(random.between(-16, 16));
    }
    CheapestSet cheapest(made.chunks, 64);
    std::vector<std::int32_t> set;
    const std::int64_t least = cheapest.find(prices, set);
    std::ranges::reverse(set);
    ASSERT_TRUE(std::ranges::is_sorted(set));
    std::int64_t value = -price_of(prices, set);
    std::int32_t end = 0;
    for (const std::int32_t chunk : set) {
      const auto c = static_cast<std::size_t>(chunk);
      value += std::max(0, made.chunks.seen_end[c] - std::max(made.chunks.seen_begin[c], end)) -
               made.chunks.own_rows[c];
      end = std::max(end, made.chunks.seen_end[c]);
    }
    EXPECT_EQ(value, least);
  }
}

TEST(CheapestSet, LargestPricesStayInsideTheirIntegers) {
  constexpr std::int32_t kRows = 1 << 24;
  const Mask mask{kRows, kRows, {band_slice({0, kRows}, {0, kRows}, MaskType::Causal)}};
  std::vector<std::int32_t> chunk_rank(64, 0);
  std::fill(chunk_rank.begin() + 32, chunk_rank.end(), 1);
  const Placement placement = placement_from_chunks(kRows, kRows / 64, 2, chunk_rank);
  const auto chunks = make_priced_chunks(make_chunk_table(mask, kRows, kRows / 64), placement);
  ASSERT_GT(chunks.max_price(), 0);
  for (const std::int32_t price : {chunks.max_price(), -chunks.max_price()}) {
    const std::vector<std::int32_t> prices(64, price);
    CheapestSet cheapest(chunks, 64);
    // The first 32 chunks see what they hold and no more.
    EXPECT_EQ(cheapest.value(prices), -std::int64_t{32} * price);
  }
}

}  // namespace
}  // namespace magi::cli
