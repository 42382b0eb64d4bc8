// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/placement/classic.hpp"

namespace magi {

/// Beyond these the exact algorithms stop with the best they have; both count work, not time, so
/// the result is the same everywhere.
inline constexpr std::int32_t kSubsetChunks = 14;
inline constexpr std::int32_t kSearchChunks = 4096;
inline constexpr std::int64_t kSearchNodes = std::int64_t{1} << 20;

/// Least largest area under the count cap, by dynamic programming over subsets of chunks
/// (O(ranks * 3^chunks)); more than kSubsetChunks chunks: place_binary_search.
Assignment place_subsets(const ChunkTable& table, const PlacementLimits& limits);

/// Bisects the largest area; backtracking decides each step. Optimal unless kSearchNodes run out or
/// there are more than kSearchChunks chunks; never worse than min heap.
Assignment place_binary_search(const ChunkTable& table, const PlacementLimits& limits);

/// Branch and bound over chunks by falling area, from min heap's solution; same limits.
Assignment place_backtracking(const ChunkTable& table, const PlacementLimits& limits);

}  // namespace magi
