// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/placement/classic.hpp"

namespace magi {

/// Closed forms where they fit, else place_affinity; never worse than min heap in both balance and
/// remote rows.
Assignment place_automatic(const Mask& mask, const ChunkTable& table,
                           const PlacementLimits& limits);

/// Starts from place_automatic's result and searches for longer.
Assignment place_thorough(const Mask& mask, const ChunkTable& table, const PlacementLimits& limits);

/// Load-capped placement by affinity of keys, repaired by swaps.
Assignment place_affinity(const ChunkTable& table, const PlacementLimits& limits);

}  // namespace magi
