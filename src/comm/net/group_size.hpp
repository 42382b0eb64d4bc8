// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "magi/comm.hpp"

namespace magi::comm {

inline constexpr std::int32_t kMaxRanks = 1024;
/// Clocks count in nanoseconds: from 292 years on a time from now would lie before it.
inline constexpr std::chrono::milliseconds kLongestDeadline{std::int64_t{1} << 40};

/// Throws InvalidArgument naming the rank, the number of ranks or the option that no group has.
void check_group_size(std::int32_t rank, std::int32_t num_ranks, const CommOptions& options);

}  // namespace magi::comm
