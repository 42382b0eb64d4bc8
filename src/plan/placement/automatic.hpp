// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "plan/placement/classic.hpp"

namespace magi {

// Where there are several nodes and all are full, each of these also gives chunks to nodes first,
// as if these were ranks, then to the ranks of each node, and keeps that where it is cheaper: a
// remote row counts once, and one that enters a node crossing_price - 1 times more.

/// Zigzag for one causal document; contiguous or zigzag where it is balanced; else place_affinity.
/// Never worse than min heap in both balance and remote rows.
Assignment place_automatic(const ChunkTable& table, const PlacementLimits& limits,
                           const NodeShape& nodes = {});

/// Starts from place_automatic's result and searches for longer.
Assignment place_thorough(const ChunkTable& table, const PlacementLimits& limits,
                          const NodeShape& nodes = {});

/// Load-capped affinity greedy, then a bounded local search over pairs of ranks.
Assignment place_affinity(const ChunkTable& table, const PlacementLimits& limits,
                          const NodeShape& nodes = {});

/// Placements over nodes to choose from by their steps: zigzag, sequential and, but for one causal
/// document, automatic, nodes of more and more uneven area, groups of nodes with rows in order, min
/// heap between few ranks and, of few chunks on a slow network, thorough. Ranks are as even as the
/// heaviest node allows.
std::vector<Assignment> place_to_choose(const ChunkTable& table, const PlacementLimits& limits,
                                        const NodeShape& nodes);

}  // namespace magi
