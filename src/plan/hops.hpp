// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "magi/plan.hpp"

namespace magi::planner {

/// Sets Exchange::hop: by node where some rank outside a row's node is not the only one of its node
/// that needs the row, so that fewer rows cross.
void choose_hops(Plan& plan);

/// Whether rows of some exchange go by node.
inline bool is_going_by_node(const Plan& plan) {
  return std::ranges::any_of(plan.exchanges, [](const Exchange& e) { return e.hop != 0; });
}

/// Visits what moves between ranks to fill segments, each run as a Hop: transfers that go straight
/// and hops of those that go by node. Copies of own rows are left out.
template <typename Visit>
void visit_moves(const Plan& plan, Visit visit) {
  const bool is_any_by_node = is_going_by_node(plan);
  for (const Transfer& t : plan.transfers) {
    if (t.src == t.dst) continue;
    if (is_any_by_node && is_by_node(plan, t.space, t.dst_segment)) continue;
    visit(Hop{.space = t.space,
              .segment = t.dst_segment,
              .from = t.src,
              .to = t.dst,
              .from_row = t.src_row,
              .to_row = t.dst_row,
              .num_rows = t.num_rows});
  }
  if (!is_any_by_node) return;
  for (const Hop& hop : find_hops(plan)) {
    if (hop.from != hop.to) visit(hop);
  }
}

}  // namespace magi::planner
