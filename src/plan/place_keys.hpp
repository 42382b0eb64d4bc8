// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/mask.hpp"
#include "magi/placement.hpp"

namespace magi::planner {

/// Places keys that do not travel with queries of the same row. Auto puts key chunks where placed
/// queries see most of their rows, largest first, within the count that the config allows a rank;
/// any other algorithm places the transposed mask.
Placement place_keys(const Mask& mask, const Placement& placement_q, const PlacementConfig& config);

}  // namespace magi::planner
