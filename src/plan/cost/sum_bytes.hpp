// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"
#include "plan/cost/loads.hpp"

namespace magi::planner {

/// Bytes that one rank reads and writes in its own memory beside attention itself, because results
/// and gradients are sums of several steps: such sums are of the wider type, are read and written
/// again by each step that adds to them, and are rounded at the end. Where no rank attends more
/// than once nothing is counted: one attention reads all keys where they lie and writes final
/// results, and the sums of key gradients are hidden behind it.
struct SumBytes {
  std::vector<std::int64_t> attends;    ///< of each attention call of the rank; empty: none
  std::vector<std::int64_t> exchanges;  ///< of each exchange of the plan; empty: none

  std::int64_t of_attend(std::int32_t attend) const { return at(attends, attend); }
  std::int64_t of_exchange(std::int32_t exchange) const { return at(exchanges, exchange); }

 private:
  static std::int64_t at(const std::vector<std::int64_t>& bytes, std::int32_t index) {
    return bytes.empty() ? 0 : bytes[static_cast<std::size_t>(index)];
  }
};

/// The bytes by rank, of one pass.
std::vector<SumBytes> sum_bytes(const Plan& plan, const PlanLoads& loads, bool is_backward);

/// Whether no rank attends more than once.
bool is_single_attend(const Plan& plan);

/// Bytes of an element of such a sum, which is also what parts travel in.
std::int32_t sum_element_bytes(const PlanConfig& config);

/// Bytes of the copies of a call's own tensors in per-share rows and back, on the rank that has
/// most rows; 0 for a plan of one share of the heads.
std::int64_t flat_copy_bytes(const Plan& plan, bool is_backward);

}  // namespace magi::planner
