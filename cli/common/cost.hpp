// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/cost.hpp"

namespace magi::cli {

/// Returns what the file of MAGI_ATTENTION_COST_FILE holds, or the library's defaults under the
/// name "defaults" where the variable is not set. Throws InvalidArgument naming the variable or the
/// key.
CostFile cost_of_environment();

}  // namespace magi::cli
