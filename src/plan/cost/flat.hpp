// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/plan.hpp"

// What a plan of head shares means: row r of the sequence is for each share s the per-share row
// s * padded rows + r.
namespace magi::planner {

/// kv heads that an exchange or an attention call may name.
inline std::int32_t heads_per_share(const Plan& plan) {
  return plan.config.num_heads_kv / plan.num_head_shares;
}

/// Rows of one share: those of the placement, the last chunk filled up.
std::int64_t rows_per_share(const Placement& placement);
/// A rank's part of them.
std::int32_t rows_per_share(const Placement& placement, std::int32_t rank);

/// Throws InvalidArgument where flat_plan would.
void validate_shares(const Plan& plan);

/// The mask, config and placements of flat_plan, without tables and report. Shares must be valid.
Plan flat_shell(const Plan& plan);

}  // namespace magi::planner
