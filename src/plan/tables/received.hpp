// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/plan.hpp"
#include "plan/tables/layout.hpp"

namespace magi::planner {

/// The place where global rows [begin, end) lie on one rank.
struct RowPiece {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t segment = 0;
  std::int32_t row = 0;  ///< row of `begin` inside the segment
};

/// The way the rows that a rank receives lie in its segments.
struct ReceivedShape {
  std::int32_t num_rows = 0;   ///< of all that it receives
  std::int32_t num_parts = 1;  ///< shared out to the segments from 1 on
  std::int32_t num_segments = 1;
  std::int32_t num_own_rows = 0;
  bool is_copying_own = false;  ///< segment 1 begins with copies of the own rows
  std::int32_t first_part = 0;  ///< goes to segment 1, the others follow it in a circle
};

/// Places received rows in segments, cut at the bounds of parts; `pieces` is written, ascending.
/// Returns the rows of each segment, the own ones first.
std::vector<std::int32_t> place_received(std::span<const Range> rows, const ReceivedShape& shape,
                                         std::vector<RowPiece>& pieces);

/// Lists own and received rows in ascending order; the own ones lie in segment `own_segment`.
void merge_pieces(const Layout& layout, std::int32_t rank, std::int32_t own_segment,
                  const std::vector<RowPiece>& received, std::vector<RowPiece>& pieces);

/// Appends the transfers of one space that fill the received pieces of `dst`, in order of
/// destination rows.
void append_transfers(const Layout& layout, Space space, std::int32_t dst,
                      const std::vector<RowPiece>& received, std::vector<Transfer>& transfers);

}  // namespace magi::planner
