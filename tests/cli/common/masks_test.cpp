// SPDX-License-Identifier: Apache-2.0
#include "common/masks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/prefix_tree.hpp"
#include "magi/error.hpp"

namespace magi::cli {
namespace {

TEST(BenchMasks, DocumentsAreTheRecordedOnes) {
  std::ifstream file(MAGI_DOCUMENT_DRAWS);
  const auto json = nlohmann::json::parse(file);
  for (const auto& [rows, draws] : json["draws"].items()) {
    EXPECT_EQ(bench_documents(std::stoi(rows)), draws[0].get<std::vector<std::int32_t>>()) << rows;
  }
}

TEST(BenchMasks, DocumentsFillEveryLength) {
  EXPECT_EQ(bench_lengths().front(), 1024);
  for (const std::int32_t rows : bench_lengths()) {
    const auto documents = bench_documents(rows);
    EXPECT_EQ(std::accumulate(documents.begin(), documents.end(), 0), rows);
    EXPECT_GT(*std::min_element(documents.begin(), documents.end()), 0);
  }
  EXPECT_ANY_THROW(bench_documents(3000));
}

TEST(BenchMasks, AreThoseOfTheNames) {
  constexpr std::int32_t kRows = 8192;
  constexpr std::int64_t kSquare = std::int64_t{kRows} * kRows;
  for (const std::string& name : bench_mask_names()) {
    const Mask mask = bench_mask(name, kRows);
    validate(mask);
    EXPECT_EQ(mask.rows_q, kRows);
    EXPECT_EQ(mask.rows_k, kRows);
  }
  EXPECT_EQ(area(bench_mask("full", kRows)), kSquare);
  EXPECT_EQ(area(bench_mask("causal", kRows)), (kSquare + kRows) / 2);
  EXPECT_EQ(area(bench_mask("window", kRows)), std::int64_t{kRows} * 1024 - 1024 * 1023 / 2);
  EXPECT_EQ(bench_mask("varlen_causal", kRows).slices.size(), 13u);
  EXPECT_EQ(bench_mask("varlen_full", 32768).slices.size(), 32u);
  EXPECT_EQ(bench_mask("block_causal", 32768).slices.size(), 38u);
  EXPECT_ANY_THROW(bench_mask("round", kRows));
}

/// What bench/distributed makes of a name: slices and area.
struct Expected {
  const char* name;
  std::size_t num_slices;
  std::int64_t area;
};

void expect_masks(std::int32_t rows, std::initializer_list<Expected> all) {
  for (const Expected& expected : all) {
    SCOPED_TRACE(expected.name);
    const Mask mask = dist_mask(expected.name, rows);
    validate(mask);
    EXPECT_EQ(mask.rows_q, rows);
    EXPECT_EQ(mask.slices.size(), expected.num_slices);
    EXPECT_EQ(area(mask), expected.area);
  }
}

TEST(DistMasks, AreThoseOfThePythonBench) {
  expect_masks(16384, {{"full", 1, 268435456},
                       {"causal", 1, 134225920},
                       {"varlen_full", 19, 32815878},
                       {"varlen_causal", 19, 16416131},
                       {"window", 1, 16253440},
                       {"varlen_block_causal", 21, 27167494},
                       {"prefix_tree", 563, 30516954},
                       {"video_blocks", 4, 111149056}});
}

TEST(DistMasks, ShortOnesAreScaled) {
  expect_masks(600, {{"full", 1, 360000},
                     {"causal", 1, 180300},
                     {"varlen_full", 5, 88550},
                     {"varlen_causal", 5, 44575},
                     {"window", 1, 135150},
                     {"varlen_block_causal", 5, 88550},
                     {"prefix_tree", 14, 151564},
                     {"video_blocks", 5, 148801}});
}

TEST(PrefixTree, IsThatOfThePythonBench) {
  const auto nodes = bench_prefix_tree(16384);
  ASSERT_EQ(nodes.size(), 172u);
  constexpr std::pair<std::int32_t, std::int32_t> kFirst[] = {
      {-1, 1816}, {0, 272}, {1, 89}, {2, 66}, {3, 71}, {4, 64},
      {4, 64},    {4, 64},  {4, 64}, {3, 78}, {9, 64}, {9, 64}};
  for (std::size_t i = 0; i < std::size(kFirst); ++i) {
    EXPECT_EQ(std::pair(nodes[i].parent, nodes[i].rows), kFirst[i]) << i;
  }
  const auto add = [](std::int32_t sum, const PrefixTreeNode& node) { return sum + node.rows; };
  EXPECT_EQ(std::accumulate(nodes.begin(), nodes.end(), 0, add), 16384);
}

TEST(DistMasks, LengthsWithoutDocumentsAreRefusedWhereAMaskHasSome) {
  EXPECT_THROW(dist_mask("varlen_full", 3000), InvalidArgument);
  EXPECT_THROW(dist_mask("round", 2048), InvalidArgument);
  EXPECT_EQ(area(dist_mask("full", 3000)), 9000000);
}

}  // namespace
}  // namespace magi::cli
