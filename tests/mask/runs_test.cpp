// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "magi/error.hpp"
#include "magi/mask_builders.hpp"
#include "magi/mask_runs.hpp"
#include "support/random_mask.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

namespace magi::testing {
namespace {

std::size_t place_of(std::int32_t row, std::int32_t key, std::int32_t rows_k) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(rows_k) +
         static_cast<std::size_t>(key);
}

TEST(MaskRuns, IntervalsInAnyOrderGiveTheirUnion) {
  for (RandomStream& random : RandomStreams(3000)) {
    const std::int32_t rows = random.between(0, 12);
    const std::int32_t keys = random.between(0, 12);
    std::vector<std::int64_t> offsets{0};
    std::vector<Range> intervals;
    Matrix matrix(static_cast<std::size_t>(rows) * static_cast<std::size_t>(keys));
    for (std::int32_t row = 0; row < rows; ++row) {
      for (int i = random.between(0, 4); i > 0; --i) {
        const std::int32_t begin = random.between(0, keys);
        const std::int32_t end = random.between(begin, keys);
        intervals.push_back({begin, end});
        for (std::int32_t j = begin; j < end; ++j) {
          matrix[place_of(row, j, keys)] = 1;
        }
      }
      offsets.push_back(static_cast<std::int64_t>(intervals.size()));
    }
    const Mask mask = mask_from_runs(offsets, intervals, keys);
    EXPECT_EQ(mask, mask_from_matrix(matrix, rows, keys));
  }
}

TEST(MaskRuns, RunsOfAMaskGiveItAgain) {
  for (RandomStream& random : RandomStreams(3000)) {
    const Mask given = random_mask(random, {.min_rows = 0, .max_rows_q = 40, .max_rows_k = 40});
    const Mask mask = mask_from_matrix(matrix_of(given), given.rows_q, given.rows_k);
    SCOPED_TRACE(describe(mask));
    const RowRuns runs = runs_of(mask);
    EXPECT_EQ(mask_from_runs(runs.offsets, runs.runs, mask.rows_k), mask);
    for (std::size_t i = 0; i + 1 < runs.offsets.size(); ++i) {
      for (auto r = runs.offsets[i]; r < runs.offsets[i + 1]; ++r) {
        const Range run = runs.runs[static_cast<std::size_t>(r)];
        EXPECT_FALSE(run.empty());
        if (r == runs.offsets[i]) continue;
        EXPECT_GT(run.begin, runs.runs[static_cast<std::size_t>(r) - 1].end);
      }
    }
    const Mask turned = transposed(mask);
    EXPECT_EQ(turned.rows_q, mask.rows_k);
    const std::vector<std::uint16_t> counts = expand(mask), other = expand(turned);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto width = static_cast<std::size_t>(mask.rows_k);
      EXPECT_EQ(counts[i], other[i % width * static_cast<std::size_t>(mask.rows_q) + i / width]);
    }
  }
}

TEST(MaskRuns, OtherSlicesOfTheSamePairsAreTheSameMask) {
  const std::vector<std::int32_t> documents{0, 7, 8, 20, 33};
  for (const Mask& mask : {mask_from_cu_seqlens(documents, documents, {.is_causal = true}),
                           mask_from_cu_seqlens(documents, documents, {.window = {3, 1}}),
                           mask_block_causal(documents, 4), mask_chunk_causal(documents, 5, 1)}) {
    Mask cut{mask.rows_q, mask.rows_k, {}};
    for (const BandSlice& slice : mask.slices) {
      const std::int32_t middle = (slice.q0 + slice.q1) / 2;
      cut.slices.push_back(cut_q(slice, {middle, slice.q1}));
      cut.slices.push_back(cut_q(slice, {slice.q0, middle}));
    }
    EXPECT_EQ(runs_of(cut), runs_of(mask));
    const RowRuns runs = runs_of(cut);
    EXPECT_LE(mask_from_runs(runs.offsets, runs.runs, cut.rows_k).slices.size(),
              mask.slices.size());
  }
}

TEST(MaskRuns, LongSequences) {
  std::vector<std::int32_t> documents;
  for (std::int32_t end = 0; end <= 1000000; end += 100) documents.push_back(end);
  const Mask mask = mask_from_cu_seqlens(documents, documents, {.is_causal = true});
  const RowRuns runs = runs_of(mask);
  EXPECT_EQ(runs.runs.size(), 1000000u);
  EXPECT_EQ(mask_from_runs(runs.offsets, runs.runs, mask.rows_k), mask);
}

TEST(MaskRuns, WideRowsOfAMatrix) {
  for (RandomStream& random : RandomStreams(500)) {
    const std::int32_t width = random.between(60, 400);
    Matrix matrix(3 * static_cast<std::size_t>(width));
    std::vector<std::int64_t> offsets{0};
    std::vector<Range> runs;
    for (std::int32_t row = 0; row < 3; ++row) {
      for (std::int32_t j = random.between(0, width); j < width; j += random.between(1, 200)) {
        const Range run{j, std::min(width, j + random.between(1, 200))};
        runs.push_back(run);
        for (; j < run.end; ++j) {
          matrix[place_of(row, j, width)] = static_cast<std::uint8_t>(random.between(1, 255));
        }
      }
      offsets.push_back(static_cast<std::int64_t>(runs.size()));
    }
    EXPECT_EQ(mask_from_matrix(matrix, 3, width), mask_from_runs(offsets, runs, width));
  }
}

TEST(MaskRuns, BadInput) {
  using Offsets = std::vector<std::int64_t>;
  const std::vector<Range> intervals{{0, 2}, {3, 1}};
  EXPECT_EQ(mask_from_runs(Offsets{0}, {}, 3), (Mask{0, 3, {}}));
  EXPECT_THROW(mask_from_runs(Offsets{}, {}, 3), InvalidArgument);
  EXPECT_THROW(mask_from_runs(Offsets{0, 1}, intervals, 3), InvalidArgument);
  EXPECT_THROW(mask_from_runs(Offsets{0, 2, 1, 2}, intervals, 3), InvalidArgument);
  EXPECT_THROW(mask_from_runs(Offsets{0}, {}, -1), InvalidArgument);
  EXPECT_EQ(refusal_of([&] {
              mask_from_runs(Offsets{0, 1, 2}, intervals, 3);
            }),
            "interval of row 1 is [3, 1); allowed: 0 <= begin <= end <= 3");
  const Mask twice{4, 4, {{0, 4, 0, 2}, {2, 3, 1, 4}}};
  EXPECT_EQ(refusal_of([&] { runs_of(twice); }),
            "row 2 is in slices [0, 4) x [0, 2) and [2, 3) x [1, 4) that both show key 1; allowed: "
            "masks that show a pair once");
}

}  // namespace
}  // namespace magi::testing
