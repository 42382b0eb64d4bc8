// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/schedule/host/backward_list.hpp"

namespace magi::test {

/// Whether kernels that walk the list count every pair as often as the mask, own every key once and
/// add to dQ in order, and whether each sum that is not left ends once.
bool is_list_of(const BackwardList& list, const Mask& mask);

/// Whether the sum of a row of q is left to the dQ convert kernel.
bool is_left(const BackwardList& list, std::int32_t row);

}  // namespace magi::test
