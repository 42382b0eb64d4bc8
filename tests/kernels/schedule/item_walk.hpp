// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/host/backward_list.hpp"

namespace magi::test {

/// Whether the items of a list walk every head group of a k tile once, in the order of the tiles
/// for each group, the splits of a kv head in theirs, and each slot serves one of them at a time;
/// and whether BackwardList::item tells their order.
bool walks_everything_once(const BackwardList& list);

}  // namespace magi::test
