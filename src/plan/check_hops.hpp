// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"

namespace magi::planner {

/// Rows that one rank sends to another where a segment is filled.
struct SentRows {
  Space space = Space::Keys;
  std::int32_t segment = 0;
  bool is_onward = false;  ///< by a rank that was sent them
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int64_t num_rows = 0;
};

/// All that moves between ranks, straight or by node: the checker's own way of finding it. What one
/// rank sends another straight, and what it hands on, is each ordered by (space, segment).
std::vector<SentRows> sent_rows(const Plan& plan);

}  // namespace magi::planner
