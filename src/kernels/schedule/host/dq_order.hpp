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

/// Numbers the connected components of the records' q intervals by first row; one per record.
std::vector<std::int32_t> find_components(std::span<const KeyRecord> records);

/// Tells which sums the main kernel converts: those that a record completes, unless the record has
/// fewer than `distance` steps for each, or shares sums with more than `most_others` records.
struct Conversions {
  std::int64_t distance = 0;
  std::int64_t most_others = std::numeric_limits<std::int64_t>::max();
};

/// Fills the dQ members of a list whose k tiles are in order: the components and semaphores of each
/// q tile, the semaphore values at which records add, is_converting and left_tiles. `component_of`
/// has one entry per record. Without `conversions` the dQ convert kernel converts all sums.
void order_dq(BackwardList& list, std::span<const std::int32_t> component_of,
              const std::optional<Conversions>& conversions);

}  // namespace magi
