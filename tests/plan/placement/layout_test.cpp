// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "magi/error.hpp"
#include "magi/placement.hpp"
#include "support/refusal.hpp"

namespace magi {
namespace {

TEST(PlacementName, RoundTripsAndListsNamesOnError) {
  for (int i = 0; i < kNumPlacementAlgorithms; ++i) {
    const auto algorithm = static_cast<PlacementAlgorithm>(i);
    EXPECT_EQ(placement_from_name(placement_name(algorithm)), algorithm);
  }
  EXPECT_STREQ(placement_name(PlacementAlgorithm::MinHeap), "min_heap");
  const std::string told = testing::refusal_of([] { placement_from_name("heap"); });
  EXPECT_NE(told.find("sequential_select"), std::string::npos);
  EXPECT_NE(told.find("\"heap\""), std::string::npos);
  EXPECT_THROW(placement_name(static_cast<PlacementAlgorithm>(kNumPlacementAlgorithms)),
               InvalidArgument);
}

TEST(ResolveChunkSize, IsTheSmallerOfAutomaticAndGiven) {
  PlacementConfig config;
  EXPECT_EQ(resolve_chunk_size(65536, 8, config), 1024);
  config.chunk_size = 512;
  EXPECT_EQ(resolve_chunk_size(65536, 8, config), 512);
  config.chunk_size = 2048;
  EXPECT_EQ(resolve_chunk_size(65536, 8, config), 1024);
  config.min_chunks_per_rank = 4;
  EXPECT_EQ(resolve_chunk_size(65536, 8, config), 2048);
  EXPECT_EQ(resolve_chunk_size(65537, 8, {}), 1025);
  EXPECT_EQ(resolve_chunk_size(0, 8, {}), 1);
  EXPECT_EQ(resolve_chunk_size(kMaxRows, 1, {}), (kMaxRows + 7) / 8);
}

TEST(ResolveChunkSize, RefusesBadValues) {
  PlacementConfig config;
  EXPECT_THROW(resolve_chunk_size(-1, 8, config), InvalidArgument);
  EXPECT_THROW(resolve_chunk_size(64, 0, config), InvalidArgument);
  config.chunk_size = 0;
  EXPECT_THROW(resolve_chunk_size(64, 8, config), InvalidArgument);
  config = {};
  config.min_chunks_per_rank = 0;
  EXPECT_THROW(resolve_chunk_size(64, 8, config), InvalidArgument);
}

TEST(PaddingRows, FillsUpToAMultipleOfChunkTimesRanks) {
  EXPECT_EQ(padding_rows(64, 4, 16), 0);
  EXPECT_EQ(padding_rows(65, 4, 16), 63);
  EXPECT_EQ(padding_rows(0, 4, 16), 0);
  EXPECT_EQ(padding_rows(1, 1, 1), 0);
  EXPECT_THROW(padding_rows(kMaxRows, 2, kMaxRows), InvalidArgument);
  EXPECT_THROW(padding_rows(64, 4, 0), InvalidArgument);
}

TEST(PlacementFromChunks, FillsRanksInAscendingOrder) {
  const Placement placement = placement_from_chunks(70, 16, 3, {2, 0, 2, 0, 2});
  EXPECT_EQ(placement.num_chunks(), 5);
  EXPECT_EQ(placement.rank_begin, (std::vector<std::int32_t>{0, 2, 2, 5}));
  EXPECT_EQ(placement.rank_chunks, (std::vector<std::int32_t>{1, 3, 0, 2, 4}));
  EXPECT_EQ(placement.chunk_rows(4), (Range{64, 70}));
  EXPECT_EQ(placement.rows_of(0), 32);
  EXPECT_EQ(placement.rows_of(1), 0);
  EXPECT_EQ(placement.rows_of(2), 38);
  EXPECT_THROW(placement.chunk_rows(5), InvalidArgument);
  EXPECT_THROW(placement.chunks_of(3), InvalidArgument);
}

TEST(PlacementFromChunks, RefusesBadLayouts) {
  EXPECT_THROW(placement_from_chunks(70, 16, 3, {0, 1, 2, 0}), InvalidArgument);
  EXPECT_THROW(placement_from_chunks(70, 16, 3, {0, 1, 2, 0, 3}), InvalidArgument);
  EXPECT_THROW(placement_from_chunks(70, 16, 3, {0, 1, 2, 0, -1}), InvalidArgument);
  EXPECT_THROW(placement_from_chunks(-1, 16, 3, {}), InvalidArgument);
  EXPECT_THROW(placement_from_chunks(16, 0, 3, {0}), InvalidArgument);
  EXPECT_THROW(placement_from_chunks(16, 16, 0, {0}), InvalidArgument);
}

}  // namespace
}  // namespace magi
