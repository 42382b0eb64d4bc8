// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "magi/plan.hpp"

namespace magi::planner {

/// The returning rows that are whole on all ranks of a plan: of each row and head one attention
/// call of one rank makes it, and the owner makes none but that of no keys. It then travels in the
/// type of the result and is put into place, where parts travel as they are summed and are added.
/// So it is with shares of the heads in one group. With sinks, whose share of a result is its
/// owner's, results are parts nevertheless; plans know of none.
class WholeReturns {
 public:
  /// Nothing is.
  WholeReturns() = default;
  /// `num_shares`: Plan::num_head_shares, also where `plan` is its flat_plan.
  WholeReturns(const Plan& plan, std::int32_t num_shares);
  /// Looks again at a plan of which nothing but attends has changed.
  void find(const Plan& plan);

  bool of(Space space) const { return is_whole_[static_cast<std::size_t>(space)]; }
  bool of(Role role) const { return is_returning(role) && of(space_of(role)); }

 private:
  std::array<bool, 2> is_moved_once_{}, is_whole_{};  ///< by Space
};

}  // namespace magi::planner
