// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "batch/slots.hpp"

namespace magi::batch {

/// All samples in slots.
struct Packing {
  std::vector<std::vector<Work>> whole;  ///< [slots]
  std::vector<Spread> spreads;
  Ticks longest = 0;  ///< time of a slot
  /// The mean of what a pipeline takes, the longest micro-batch as often as there are any, and of
  /// all micro-batches one after the other.
  double step = 0.0;
};

/// Packs the samples into equal micro-batches whose longest rank comes near to `bound`, which is
/// bound_of. Nothing where memory does not suffice.
std::optional<Packing> pack(const BatchWork& work, const BatchConfig& config,
                            std::int32_t num_micro_batches, Ticks bound);

}  // namespace magi::batch
