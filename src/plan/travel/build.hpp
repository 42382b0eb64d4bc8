// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"
#include "plan/tables/layout.hpp"
#include "plan/travel/even.hpp"

namespace magi::planner {

struct WorkInputs {
  const Layout& layout_q;
  const Layout& layout_k;
  const std::vector<WorkPiece>& pieces;  ///< grouped by rank, ascending
  std::int32_t degree = 1;               ///< remote stages; 0: keys are gathered first
  /// Own rows that a rank reads are copied to where those of others come, queries and keys.
  bool is_collecting = false;
};

/// Fills exchanges, ranks and transfers of a plan whose ranks compute the given pieces, whoever
/// owns their queries and keys. A rank receives each row that it lacks (collecting: reads) once. By
/// heads a stage brings keys and queries of a section of kv heads; by rows the first one brings all
/// queries and a run of the keys, later ones further runs.
void build_work(const WorkInputs& inputs, Plan& plan);

}  // namespace magi::planner
