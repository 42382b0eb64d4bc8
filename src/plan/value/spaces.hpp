// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/plan.hpp"

// The parts of a plan that are of keys or of queries.
namespace magi::planner {

inline const TokenSpace& space_of(const RankPlan& rank, Space space) {
  return space == Space::Keys ? rank.k : rank.q;
}
inline std::int32_t segment_of(const Attend& attend, Space space) {
  return space == Space::Keys ? attend.k_segment : attend.q_segment;
}
constexpr const char* name_of(Space space) { return space == Space::Keys ? "key" : "query"; }

/// The ranges must not be empty.
constexpr bool overlaps(Range a, Range b) { return a.begin < b.end && b.begin < a.end; }

}  // namespace magi::planner
