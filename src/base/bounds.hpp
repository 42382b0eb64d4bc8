// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.hpp"

namespace magi {

/// Throws InvalidArgument unless low <= value <= high.
inline void require_between(std::string_view name, std::int64_t value, std::int64_t low,
                            std::int64_t high) {
  if (value < low || value > high) {
    throw invalid(name, value, std::to_string(low) + " to " + std::to_string(high));
  }
}

}  // namespace magi
