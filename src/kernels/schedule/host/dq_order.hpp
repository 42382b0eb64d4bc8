// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/schedule/host/backward_list.hpp"

// The order in which the records of a backward list add to dQ, and which dQ sums the main kernel
// converts to rows of dq.
namespace magi {

/// The connected component of each record's q interval, counted from the first row on.
std::vector<std::int32_t> find_components(std::span<const KeyRecord> records);

/// Fills what a list with its k tiles in order says of dQ: the components and semaphores of each q
/// tile, the semaphore values at which records add, is_converting and left_tiles. `component_of` is
/// that of each record. A k tile with fewer than `conversion_distance` steps for each sum that it
/// completes leaves these to the dQ convert kernel; absent: all k tiles do.
void order_dq(BackwardList& list, std::span<const std::int32_t> component_of,
              std::optional<std::int64_t> conversion_distance);

}  // namespace magi
