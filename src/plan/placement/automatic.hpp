// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/placement/classic.hpp"

namespace magi {

/// Zigzag for one causal document; contiguous or zigzag where it is balanced; else place_affinity.
/// Never worse than min heap in both balance and remote rows.
Assignment place_automatic(const ChunkTable& table, const PlacementLimits& limits);

/// Starts from place_automatic's result and searches for longer.
Assignment place_thorough(const ChunkTable& table, const PlacementLimits& limits);

/// Load-capped affinity greedy, then a bounded local search over pairs of ranks.
Assignment place_affinity(const ChunkTable& table, const PlacementLimits& limits);

}  // namespace magi
