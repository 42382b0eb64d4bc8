// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "magi/error.hpp"
#include "magi/mask_builders.hpp"
#include "support/random_mask.hpp"
#include "support/random_streams.hpp"

namespace magi::testing {
namespace {

/// The matrix becomes slices that hold each of its pairs once; returns how many.
std::size_t round_trip(const Matrix& matrix, std::int32_t rows_q, std::int32_t rows_k) {
  const Mask mask = mask_from_matrix(matrix, rows_q, rows_k);
  SCOPED_TRACE(describe(mask));
  validate(mask);
  const std::vector<std::uint16_t> counts = expand(mask);
  for (std::size_t n = 0; n < matrix.size(); ++n) {
    EXPECT_EQ(counts[n], matrix[n] != 0 ? 1 : 0) << "entry " << n;
    if (::testing::Test::HasFailure()) break;
  }
  return mask.slices.size();
}

TEST(MaskFromMatrix, RandomMatricesOfEveryDensity) {
  for (RandomStream& random : RandomStreams(3000)) {
    const std::int32_t rows_q = random.between(0, 12);
    const std::int32_t rows_k = random.between(0, 12);
    const int percent = random.between(0, 100);
    Matrix matrix;
    for (int e = 0; e < rows_q * rows_k; ++e) {
      matrix.push_back(
          static_cast<std::uint8_t>(random.chance(percent) ? random.between(1, 255) : 0));
    }
    round_trip(matrix, rows_q, rows_k);
  }
}

TEST(MaskFromMatrix, RandomMasks) {
  for (RandomStream& random : RandomStreams(2000)) {
    const Mask mask = random_mask(random, {.min_rows = 0, .max_rows_q = 30, .max_rows_k = 30});
    SCOPED_TRACE(describe(mask));
    round_trip(matrix_of(mask), mask.rows_q, mask.rows_k);
  }
}

TEST(MaskFromMatrix, EveryBandIsTheShrunkSliceItself) {
  for (RandomStream& random : RandomStreams(6000)) {
    const BandSlice slice = random_slice(random, 18, 18, {});
    const Mask mask = mask_from_matrix(matrix_of({18, 18, {slice}}), 18, 18);
    std::vector<BandSlice> expected;
    if (area(slice) > 0) expected.push_back(shrink(slice));
    ASSERT_EQ(mask.slices, expected) << describe(slice);
  }
}

TEST(MaskFromMatrix, StructuredMasksNeedFewSlices) {
  const std::vector<std::int32_t> documents = {0, 7, 8, 20, 33};
  const auto slices_of = [](const Mask& mask) {
    return round_trip(matrix_of(mask), mask.rows_q, mask.rows_k);
  };
  EXPECT_EQ(slices_of(mask_from_cu_seqlens(documents, documents, {.is_causal = true})), 4u);
  EXPECT_EQ(slices_of(mask_from_cu_seqlens(documents, documents, {.window = {3, 1}})), 4u);
  EXPECT_EQ(slices_of(mask_from_cu_seqlens(documents, documents, {})), 4u);
  const std::vector<std::int32_t> prefixes = {3, 0, 5, 13};
  EXPECT_EQ(slices_of(mask_prefix_lm(documents, prefixes)), 6u);
  EXPECT_EQ(slices_of(mask_block_causal(std::vector<std::int32_t>{0, 32}, 8)), 4u);
  EXPECT_EQ(slices_of(mask_chunk_causal(std::vector<std::int32_t>{0, 32}, 8, 1)), 3u);
  const std::vector<PrefixTreeNode> fork = {{-1, 4}, {0, 3}, {0, 5}};
  EXPECT_EQ(slices_of(mask_prefix_tree(fork)),
            3u);  // the chain to the first answer is one triangle
}

TEST(MaskFromMatrix, EdgesAndBadInput) {
  EXPECT_EQ(mask_from_matrix({}, 0, 5), (Mask{0, 5, {}}));
  EXPECT_EQ(mask_from_matrix(Matrix{1}, 1, 1), (Mask{1, 1, {{0, 1, 0, 1}}}));
  EXPECT_EQ(mask_from_matrix(Matrix{0, 0, 0, 0}, 2, 2), (Mask{2, 2, {}}));
  EXPECT_THROW(mask_from_matrix(Matrix{1, 1, 1}, 2, 2), InvalidArgument);
  EXPECT_THROW(mask_from_matrix({}, -1, 0), InvalidArgument);
  EXPECT_THROW(mask_from_matrix(Matrix{1}, kMaxRows, kMaxRows), InvalidArgument);
}

}  // namespace
}  // namespace magi::testing
