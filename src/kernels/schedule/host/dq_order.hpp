// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "kernels/schedule/host/backward_list.hpp"

// The order in which the records of a backward list add to dQ, and which dQ sums the main kernel
// converts to rows of dq.
namespace magi {

/// The connected component of each record's q interval, counted from the first row on.
std::vector<std::int32_t> find_components(std::span<const KeyRecord> records);

/// Tells which sums the main kernel converts: those that a record completes, unless the record has
/// fewer than `distance` steps for each, or shares sums with more than `most_others` records.
struct Conversions {
  std::int64_t distance = 0;
  std::int64_t most_others = std::numeric_limits<std::int64_t>::max();
};

/// Fills what a list with its k tiles in order says of dQ: the components and semaphores of each q
/// tile, the semaphore values at which records add, is_converting and left_tiles. `component_of` is
/// that of each record. Without `conversions` all sums are left to the dQ convert kernel.
void order_dq(BackwardList& list, std::span<const std::int32_t> component_of,
              const std::optional<Conversions>& conversions);

}  // namespace magi
