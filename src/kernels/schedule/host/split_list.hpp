// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/host/split_rule.hpp"

namespace magi {

/// Splits the longest tiles of a list of whole tiles as the rule says. Splits of one tile lie side
/// by side, after whole tiles of equal cost.
void split_long_tiles(ForwardList& list, const SplitRule& rule);

}  // namespace magi
