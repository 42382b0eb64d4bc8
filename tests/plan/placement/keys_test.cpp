// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "plan/placement/block_keys.hpp"
#include "plan/placement/evaluate.hpp"
#include "plan/placement/monotone_keys.hpp"
#include "plan/placement/placement_cases.hpp"
#include "support/random_streams.hpp"

namespace magi {
namespace {

std::vector<std::int32_t> chunks_of(const Assignment& rank_of, std::int32_t rank) {
  std::vector<std::int32_t> chunks;
  for (std::size_t c = 0; c < rank_of.size(); ++c) {
    if (rank_of[c] == rank) chunks.push_back(static_cast<std::int32_t>(c));
  }
  return chunks;
}

/// Every gain and every swap of two ranks against the exact cost before and after.
template <typename Keys>
void check_pair(const ChunkTable& table, const Keys& keys, Assignment rank_of) {
  const std::int64_t before = evaluate(table, rank_of, 2).remote_rows;
  const std::vector<std::int32_t> x = chunks_of(rank_of, 0);
  const std::vector<std::int32_t> y = chunks_of(rank_of, 1);
  typename Keys::Pair pair;
  pair.load(keys, x, y);
  const auto change = [&](const std::vector<std::int32_t>& moved) {
    Assignment after = rank_of;
    for (const std::int32_t c : moved) after[static_cast<std::size_t>(c)] ^= 1;
    return evaluate(table, after, 2).remote_rows - before;
  };
  ASSERT_EQ(pair.gain_x().size(), x.size());
  ASSERT_EQ(pair.gain_y().size(), y.size());
  for (std::size_t a = 0; a < x.size(); ++a) EXPECT_EQ(pair.gain_x()[a], change({x[a]}));
  for (std::size_t b = 0; b < y.size(); ++b) EXPECT_EQ(pair.gain_y()[b], change({y[b]}));
  for (std::size_t a = 0; a < x.size(); ++a) {
    for (std::size_t b = 0; b < y.size(); ++b) {
      EXPECT_EQ(pair.swap(a, b), change({x[a], y[b]}));
      EXPECT_GE(pair.swap(a, b), std::int64_t{pair.gain_x()[a]} + pair.gain_y()[b]);
    }
  }
}

Assignment random_halves(RandomStream& random, std::int32_t chunks) {
  Assignment rank_of(static_cast<std::size_t>(chunks));
  for (std::int32_t& rank : rank_of) rank = random.between(0, 1);
  return rank_of;
}

Mask random_monotone_mask(RandomStream& random, std::int32_t rows) {
  switch (random.between(0, 3)) {
    case 0:
      return testing::document_mask(testing::random_lengths(random, rows), MaskType::Causal);
    case 1:
      return testing::document_mask(testing::random_lengths(random, rows), MaskType::Full);
    case 2:
      return testing::document_mask(testing::random_lengths(random, rows), MaskType::InverseCausal);
    default:
      return {rows, rows, {{0, rows, 0, rows, -random.between(0, 30), random.between(0, 20)}}};
  }
}

TEST(MonotoneKeys, IsExactForDocumentsAndWindows) {
  for (RandomStream& random : testing::RandomStreams(100)) {
    const std::int32_t rows = random.between(20, 120);
    const Mask mask = random_monotone_mask(random, rows);
    const ChunkTable table =
        make_chunk_table(mask, rows + random.between(0, 20), random.between(3, 9));
    const auto keys = MonotoneKeys::from(table);
    ASSERT_TRUE(keys.has_value());
    const Assignment rank_of = random_halves(random, table.num_chunks());
    EXPECT_EQ(keys->remote_rows(rank_of, 2), evaluate(table, rank_of, 2).remote_rows);
    check_pair(table, *keys, rank_of);
  }
}

TEST(MonotoneKeys, IsExactWhereverItAcceptsAMask) {
  int accepted = 0;
  for (RandomStream& random : testing::RandomStreams(3000)) {
    RandomMaskOptions options;
    options.is_square = true;
    options.max_slices = 6;
    const Mask mask = random_mask(random, options);
    const ChunkTable table = make_chunk_table(mask, mask.rows_q, random.between(2, 20));
    const auto keys = MonotoneKeys::from(table);
    if (!keys) continue;
    ++accepted;
    const Assignment rank_of = random_halves(random, table.num_chunks());
    EXPECT_EQ(keys->remote_rows(rank_of, 2), evaluate(table, rank_of, 2).remote_rows);
    check_pair(table, *keys, rank_of);
  }
  EXPECT_GT(accepted, 100);
}

TEST(MonotoneKeys, RefusesOtherMasks) {
  // A global first row; a chunk whose own rows only another chunk sees.
  Mask global = testing::document_mask({16}, MaskType::BidirectionalCausal);
  global.slices.push_back(band_slice({8, 16}, {0, 1}, MaskType::Full));
  EXPECT_FALSE(MonotoneKeys::from(make_chunk_table(global, 16, 4)).has_value());
  const Mask crossed{16, 16, {band_slice({0, 8}, {8, 16}, MaskType::Full)}};
  EXPECT_FALSE(MonotoneKeys::from(make_chunk_table(crossed, 16, 8)).has_value());
  const Mask falling{
      16,
      16,
      {band_slice({0, 8}, {8, 16}, MaskType::Full), band_slice({8, 16}, {0, 8}, MaskType::Full)}};
  EXPECT_FALSE(MonotoneKeys::from(make_chunk_table(falling, 16, 8)).has_value());
}

TEST(MonotoneKeys, KnowsOneCausalDocument) {
  const auto is_one = [](const Mask& mask, std::int32_t rows) {
    const ChunkTable table = make_chunk_table(mask, rows, 8);
    return MonotoneKeys::from(table)->is_one_causal_document(table);
  };
  EXPECT_TRUE(is_one(testing::document_mask({64}, MaskType::Causal), 64));
  EXPECT_TRUE(is_one(testing::document_mask({61}, MaskType::Causal), 64));
  EXPECT_FALSE(is_one(testing::document_mask({32, 32}, MaskType::Causal), 64));
  EXPECT_FALSE(is_one(testing::document_mask({64}, MaskType::Full), 64));
}

TEST(BlockKeys, IsExactWhereBlocksAreRows) {
  for (RandomStream& random : testing::RandomStreams(150)) {
    const Mask mask = testing::random_square_mask(random, 8, 60);
    const ChunkTable table = make_chunk_table(mask, mask.rows_q, random.between(2, 9));
    check_pair(table, BlockKeys(table), random_halves(random, table.num_chunks()));
  }
}

TEST(CostOfAdding, IsTheChangeOfRemoteRows) {
  for (RandomStream& random : testing::RandomStreams(60)) {
    const Mask mask = random_monotone_mask(random, 80);
    const ChunkTable table = make_chunk_table(mask, 80, 7);
    const auto keys = MonotoneKeys::from(table);
    const BlockKeys blocks(table);
    const Assignment rank_of = random_halves(random, table.num_chunks());
    const std::vector<std::int32_t> x = chunks_of(rank_of, 0);
    const std::vector<std::int32_t> y = chunks_of(rank_of, 1);
    MonotoneKeys::Pair pair;
    pair.load(*keys, x, y);
    for (std::size_t a = 0; a < x.size(); ++a) {
      std::vector<std::int32_t> rest = x;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(a));
      EXPECT_EQ(pair.gain_x()[a], keys->cost_of_adding(x[a], y) - keys->cost_of_adding(x[a], rest));
      EXPECT_EQ(pair.gain_x()[a],
                blocks.cost_of_adding(x[a], y) - blocks.cost_of_adding(x[a], rest));
    }
  }
}

}  // namespace
}  // namespace magi
