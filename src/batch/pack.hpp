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
  /// The mean of two times: of a pipeline, the longest micro-batch times their number, and of all
  /// micro-batches one after the other.
  double step = 0.0;
};

/// Packs the samples into equal micro-batches whose longest rank comes near to `bound`, which is
/// bound_of. Nothing where memory does not suffice.
std::optional<Packing> pack(const BatchWork& work, const BatchConfig& config,
                            std::int32_t num_micro_batches, Ticks bound);

}  // namespace magi::batch
