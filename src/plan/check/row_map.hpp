// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/plan.hpp"

namespace magi::planner {

/// Rows [local, local + num_rows) of a segment hold global rows from `global` on.
struct MappedRows {
  std::int32_t local = 0;
  std::int32_t global = 0;
  std::int32_t num_rows = 0;
  bool is_own = false;  ///< the rank's own rows, or copies of them
  friend bool operator==(const MappedRows&, const MappedRows&) = default;
};

/// The global rows behind the rows of every segment of one space of all ranks, as placements and
/// transfers tell. The plan's structure must be sound (check_structure).
class RowMap {
 public:
  RowMap(const Plan& plan, Space space);

  /// Ascending in local rows. Runs go on as long as both rows do, over borders of owners too; rows
  /// that nothing fills are in none, rows filled twice in several.
  std::span<const MappedRows> of(std::size_t rank, std::int32_t segment) const {
    return runs_[rank * num_segments_ + static_cast<std::size_t>(segment)];
  }

 private:
  std::size_t num_segments_;
  std::vector<std::vector<MappedRows>> runs_;  // [num_ranks * num_segments]
};

}  // namespace magi::planner
