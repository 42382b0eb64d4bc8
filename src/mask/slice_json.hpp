// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "base/json.hpp"
#include "magi/mask.hpp"

namespace magi {

/// Slices as rows of integers [q0, q1, k0, k1, d_min, d_max], null for what is unbounded.
json::Value slice_rows(std::vector<BandSlice>& slices);

}  // namespace magi
