// SPDX-License-Identifier: Apache-2.0
#include "plan/tables/received.hpp"

#include <algorithm>

#include "plan/tables/stages.hpp"

namespace magi::planner {

std::vector<std::int32_t> place_received(std::span<const Range> rows, const ReceivedShape& shape,
                                         std::vector<RowPiece>& pieces) {
  pieces.clear();
  std::vector<std::int32_t> segment_rows(static_cast<std::size_t>(shape.num_segments));
  segment_rows[0] = shape.num_own_rows;
  if (shape.num_rows == 0) return segment_rows;
  if (shape.is_copying_own) segment_rows[1] = segment_rows[0];
  std::int32_t received = 0;
  std::int32_t part = 0;
  Range part_rows = share_of(shape.num_rows, shape.num_parts, part);
  for (const Range& range : rows) {
    for (std::int32_t begin = range.begin; begin < range.end;) {
      if (received == part_rows.end) part_rows = share_of(shape.num_rows, shape.num_parts, ++part);
      const std::int32_t count = std::min(range.end - begin, part_rows.end - received);
      const std::int32_t segment =
          1 + (part + shape.num_parts - shape.first_part) % shape.num_parts;
      std::int32_t& filled = segment_rows[static_cast<std::size_t>(segment)];
      pieces.push_back({begin, begin + count, segment, filled});
      filled += count;
      begin += count;
      received += count;
    }
  }
  return segment_rows;
}

void merge_pieces(const Layout& layout, std::int32_t rank, std::int32_t own_segment,
                  const std::vector<RowPiece>& received, std::vector<RowPiece>& pieces) {
  pieces.clear();
  auto next = received.begin();
  for (const std::int32_t index : layout.runs_of(rank)) {
    const RowRun& run = layout.runs[static_cast<std::size_t>(index)];
    for (; next != received.end() && next->begin < run.begin; ++next) pieces.push_back(*next);
    pieces.push_back({run.begin, run.end, own_segment, run.local});
  }
  pieces.insert(pieces.end(), next, received.end());
}

void append_transfers(const Layout& layout, Space space, std::int32_t dst,
                      const std::vector<RowPiece>& received, std::vector<Transfer>& transfers) {
  const std::size_t first = transfers.size();
  for (const RowPiece& piece : received) {
    auto index = static_cast<std::size_t>(layout.run_of_row(piece.begin));
    for (std::int32_t row = piece.begin; row < piece.end; ++index) {
      const RowRun& run = layout.runs[index];
      const std::int32_t rows = std::min(piece.end, run.end) - row;
      const std::int32_t src_row = run.local + (row - run.begin);
      const std::int32_t dst_row = piece.row + (row - piece.begin);
      row += rows;
      // Runs of one owner around rows of `dst` are neighbours on both sides.
      Transfer* last = transfers.size() > first ? &transfers.back() : nullptr;
      if (last != nullptr && last->src == run.rank && last->dst_segment == piece.segment &&
          last->src_row + last->num_rows == src_row && last->dst_row + last->num_rows == dst_row) {
        last->num_rows += rows;
        continue;
      }
      // Filled where it lies: one put together beside the list takes half as long again.
      Transfer& next = transfers.emplace_back();
      next.src = run.rank;
      next.dst = dst;
      next.src_row = src_row;
      next.dst_segment = static_cast<std::int16_t>(piece.segment);
      next.space = space;
      next.dst_row = dst_row;
      next.num_rows = rows;
    }
  }
}

}  // namespace magi::planner
