// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/placement.hpp"
#include "plan/placement/chunk_table.hpp"

namespace magi {

/// Chunk -> rank.
using Assignment = std::vector<std::int32_t>;

/// The limits that all algorithms obey.
struct PlacementLimits {
  std::int32_t num_ranks = 1;
  std::int32_t max_chunks = 1;  ///< per rank
  /// If above 0, searches exchange chunks between ranks of one node only.
  std::int32_t devices_per_node = 0;
};

/// A rank may hold (1 + tolerance) x the mean count, and never less than an even share.
PlacementLimits placement_limits(std::int32_t num_chunks, std::int32_t num_ranks, double tolerance);

/// Chunks by falling area; among equals the later chunk comes first, as in the original.
std::vector<std::int32_t> chunks_by_area(const ChunkTable& table);

/// Runs of neighbouring chunks; the first num_chunks % num_ranks ranks hold one more.
Assignment place_sequential(const ChunkTable& table, const PlacementLimits& limits);

/// Two runs per rank, the i-th from the front and the i-th from the back; chunks left in the middle
/// are dealt one by one.
Assignment place_zigzag(const ChunkTable& table, const PlacementLimits& limits);

/// Longest processing time first (Graham 1969) with a cap on counts.
Assignment place_min_heap(const ChunkTable& table, const PlacementLimits& limits);
/// The same from chunks_by_area()'s order.
Assignment place_min_heap(const ChunkTable& table, const PlacementLimits& limits,
                          std::span<const std::int32_t> order);

/// Sequential over a shuffled order (Fisher-Yates over a fixed generator).
Assignment place_random(const ChunkTable& table, const PlacementLimits& limits, std::uint64_t seed);

}  // namespace magi
