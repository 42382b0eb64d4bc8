// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "batch/slots.hpp"

namespace magi::batch {

/// Neighbouring ranks of a micro-batch.
struct Window {
  std::int32_t micro_batch = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;
};

/// The chunks of a sample that each rank of a window takes, so that all who take some end alike;
/// those who would end later without any take none.
struct Filling {
  double level = 0.0;  ///< the time at which they end; infinity where chunks do not fit
  std::vector<std::int32_t> chunks;
};
Filling fill(const Work& work, const Window& window, const Slots& slots, const BatchWork& batch,
             const BatchConfig& config);

}  // namespace magi::batch
