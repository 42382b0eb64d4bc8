// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/plan.hpp"
#include "plan/check/row_map.hpp"
#include "plan/check/structure.hpp"

namespace magi::planner {

/// The global rows behind both spaces of a plan.
struct RowMaps {
  explicit RowMaps(const Plan& plan) : q(plan, Space::Queries), k(plan, Space::Keys) {}
  RowMap q;
  RowMap k;
};

/// Every row of a receive segment is filled once; rows of other ranks stand in it in global order,
/// are read by an attention call and come to a rank once.
void check_received(const Plan& plan, const RowMaps& rows, Problems& problems);

/// Every visible pair is attended to exactly as often as the mask has it.
void check_pairs(const Plan& plan, const RowMaps& rows, Problems& problems);

}  // namespace magi::planner
