// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"

namespace magi::planner {

inline constexpr std::int32_t kMaxRanks = 4096;
inline constexpr std::int32_t kMaxHeads = 65536;
inline constexpr std::int32_t kMaxHeadDim = 65536;
inline constexpr std::int32_t kMaxDegree = 256;
inline constexpr std::int32_t kMaxSegments = kMaxDegree + 1;  ///< of one token space
inline constexpr std::int32_t kMaxAttends = 4096;             ///< of one rank

/// The most ranks of a plan that moves queries: its search takes the square of them, 18 s for a
/// million causal rows on 64 ranks.
inline constexpr std::int32_t kMostRanksMovingQueries = 64;

/// Numbers of head shares above 1 that a config allows, ascending: common divisors of its ranks and
/// kv heads, or the one that it asks for.
std::vector<std::int32_t> possible_shares(const PlanConfig& config);

/// Whether placement weighs or bounds PlanReport::rank_runs.
bool asks_for_runs(const PlanConfig& config);

/// Bytes of exchange memory that a plan needs above the bound of its config; 0: it keeps it.
std::int64_t bytes_above_bound(const PlanConfig& config, std::int64_t exchange_bytes);
/// Whether a plan that needs so many is refused: a default bound refuses none.
inline bool is_above_bound(const PlanConfig& config, std::int64_t exchange_bytes) {
  return config.max_exchange_bytes && bytes_above_bound(config, exchange_bytes) > 0;
}

/// Throws InvalidArgument naming the first field that is out of range.
void validate_config(const PlanConfig& config);

/// Throws InvalidArgument for a mask without rows, one whose areas or bytes would leave int64, and
/// cross-attention where runs are bounded.
void validate_sizes(const Mask& mask, const PlanConfig& config);

}  // namespace magi::planner
