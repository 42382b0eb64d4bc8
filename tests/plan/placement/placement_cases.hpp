// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "magi/placement.hpp"
#include "mask/random_mask.hpp"
#include "plan/placement/chunk_table.hpp"
#include "support/masks.hpp"

namespace magi::testing {

inline constexpr std::array kAllAlgorithms = {
    PlacementAlgorithm::Auto,
    PlacementAlgorithm::Thorough,
    PlacementAlgorithm::Zigzag,
    PlacementAlgorithm::Affinity,
    PlacementAlgorithm::MinHeap,
    PlacementAlgorithm::RandomSelect,
    PlacementAlgorithm::SequentialSelect,
};

inline std::vector<std::int32_t> random_lengths(RandomStream& random, std::int32_t total) {
  std::vector<std::int32_t> lengths;
  for (std::int32_t left = total; left > 0; left -= lengths.back()) {
    lengths.push_back(random.between(1, std::max(1, std::min(left, total / 3))));
  }
  return lengths;
}

inline Mask random_square_mask(RandomStream& random, std::int32_t min_rows, std::int32_t max_rows) {
  RandomMaskOptions options;
  options.min_rows = min_rows;
  options.max_rows_q = options.max_rows_k = max_rows;
  options.is_square = true;
  return random_mask(random, options);
}

/// Area and remote rows of every rank, pair by pair.
inline PlacementCost brute_cost(const Mask& mask, const Placement& placement) {
  const auto ranks = static_cast<std::size_t>(placement.num_ranks);
  const auto rows_k = static_cast<std::size_t>(mask.rows_k);
  const std::vector<std::uint16_t> pairs = expand(mask);
  std::vector<std::vector<bool>> needed(ranks, std::vector<bool>(rows_k, false));
  const auto rank_of_row = [&](std::size_t row) {
    return static_cast<std::size_t>(
        placement.chunk_rank[row / static_cast<std::size_t>(placement.chunk_size)]);
  };
  PlacementCost cost;
  cost.area.assign(ranks, 0);
  cost.remote_rows.assign(ranks, 0);
  for (std::size_t i = 0; i < static_cast<std::size_t>(mask.rows_q); ++i) {
    for (std::size_t j = 0; j < rows_k; ++j) {
      const std::uint16_t times = pairs[i * rows_k + j];
      cost.area[rank_of_row(i)] += times;
      if (times > 0) needed[rank_of_row(i)][j] = true;
    }
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t j = 0; j < rows_k; ++j) {
      const bool is_own = j < static_cast<std::size_t>(placement.num_rows) && rank_of_row(j) == r;
      cost.remote_rows[r] += needed[r][j] && !is_own ? 1 : 0;
    }
  }
  return cost;
}

}  // namespace magi::testing
