// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/memory.hpp"

namespace magi::cli {

/// About normal values of deviation 1; those of a large array repeat after some millions.
DeviceBuffer random_bfloat16(std::int64_t count, std::uint64_t seed);

}  // namespace magi::cli
