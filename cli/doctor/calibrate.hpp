// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "doctor/gpus.hpp"
#include "magi/cost.hpp"

namespace magi::cli {

/// Measures the constants of the cost model: on all GPUs at once where two or more are served by
/// attention, else on two threads of the CPU. `report` gets a line about what is measured.
CostFile calibrate(const GpuMachine& machine,
                   const std::function<void(const std::string&)>& report);

}  // namespace magi::cli
