// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/plan.hpp"
#include "plan/check/structure.hpp"

namespace magi::planner {

/// The exchanges of each segment carry all kv heads once, there and back, and their stages count up
/// without a gap.
void check_exchange_heads(const Plan& plan, Problems& problems);

/// Attends that share slices have all kv heads between them, each once, and no two share a part of
/// their slices; slices are in order.
void check_attend_slices(const Plan& plan, std::size_t rank, Problems& problems);

/// Both passes of a rank run every attention call once and start the exchanges of the pass in their
/// order; an attention call waits for the exchanges that bring its rows, a returning exchange for
/// the last attention call that writes what it sends or adds to; the first attention call on each
/// query row and head does not merge, later ones do.
void check_passes(const Plan& plan, std::size_t rank, Problems& problems);

}  // namespace magi::planner
