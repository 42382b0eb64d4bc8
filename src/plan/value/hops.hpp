// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "magi/plan.hpp"

namespace magi::planner {

/// Sets Exchange::hop: by node where some rank outside a row's node is not the only one of its node
/// that needs the row, so that fewer rows cross.
void choose_hops(Plan& plan);

/// Whether rows of some exchange go by node.
inline bool is_going_by_node(const Plan& plan) {
  return std::ranges::any_of(plan.exchanges, [](const Exchange& e) { return e.hop != 0; });
}

/// Segments that are filled by node.
class SegmentSet {
 public:
  explicit SegmentSet(const Plan& plan) {
    for (const Exchange& exchange : plan.exchanges) {
      auto& segments = has_[static_cast<std::size_t>(space_of(exchange.role))];
      const auto segment = static_cast<std::size_t>(exchange.segment);
      if (segments.size() <= segment) segments.resize(segment + 1);
      if (exchange.hop != 0) segments[segment] = true;
    }
  }

  bool has(Space space, std::int32_t segment) const {
    const auto& segments = has_[static_cast<std::size_t>(space)];
    const auto index = static_cast<std::size_t>(segment);
    return index < segments.size() && segments[index];
  }
  /// A segment that some exchange fills.
  void add(Space space, std::int32_t segment) {
    has_[static_cast<std::size_t>(space)][static_cast<std::size_t>(segment)] = true;
  }

 private:
  std::array<std::vector<bool>, 2> has_;  ///< by Space
};

/// Rows that one rank sends another to fill a segment.
struct MovedRows {
  Space space = Space::Keys;
  std::int16_t segment = 0;
  bool is_onward = false;  ///< see Hop
  std::int32_t from = 0;   ///< rank
  std::int32_t to = 0;     ///< rank
  std::int32_t num_rows = 0;
};

/// The hops of all segments that are filled by node, summed: each (space, segment, is_onward, from,
/// to) once, and no copies of own rows.
std::vector<MovedRows> moved_by_node(const Plan& plan);

/// Visits what moves between ranks to fill segments: transfers that go straight, and `by_node` of
/// moved_by_node. Copies of own rows are left out.
template <typename Visit>
void visit_moves(const Plan& plan, std::span<const MovedRows> by_node, Visit visit) {
  const SegmentSet is_by_node(plan);
  for (const Transfer& t : plan.transfers) {
    if (t.src == t.dst || is_by_node.has(t.space, t.dst_segment)) continue;
    visit(MovedRows{.space = t.space,
                    .segment = t.dst_segment,
                    .from = t.src,
                    .to = t.dst,
                    .num_rows = t.num_rows});
  }
  for (const MovedRows& moved : by_node) visit(moved);
}

}  // namespace magi::planner
