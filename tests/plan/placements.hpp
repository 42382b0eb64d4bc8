// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <random>
#include <vector>

#include "magi/placement.hpp"

namespace magi {

/// A layout drawn at random: any rank may hold any number of chunks, none included; the last chunk
/// may be short.
inline Placement random_placement(std::mt19937_64& random) {
  const auto draw = [&](std::int32_t low, std::int32_t high) {
    return std::uniform_int_distribution<std::int32_t>(low, high)(random);
  };
  const std::int32_t num_ranks = draw(1, 6);
  const std::int32_t chunk_size = draw(1, 9);
  const std::int32_t num_rows = draw(1, 80);
  std::vector<std::int32_t> chunk_rank(
      static_cast<std::size_t>((num_rows + chunk_size - 1) / chunk_size));
  for (std::int32_t& rank : chunk_rank) rank = draw(0, num_ranks - 1);
  return placement_from_chunks(num_rows, chunk_size, num_ranks, std::move(chunk_rank));
}

/// Global row of every local row, straight from the definition.
inline std::vector<std::int32_t> global_rows(const Placement& placement, std::int32_t rank) {
  std::vector<std::int32_t> rows;
  for (std::int32_t row = 0; row < placement.num_rows; ++row) {
    const auto chunk = static_cast<std::size_t>(row / placement.chunk_size);
    if (placement.chunk_rank[chunk] == rank) rows.push_back(row);
  }
  return rows;
}

}  // namespace magi
