// SPDX-License-Identifier: Apache-2.0
#include "comm/wire_order.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace magi::comm {
namespace {

void add_tasks(std::vector<RowTask>& tasks, RowTask run) {
  while (run.num_rows > 0) {
    RowTask task = run;
    task.num_rows = std::min(run.num_rows, kRowsPerTask);
    tasks.push_back(task);
    run.local_row += task.num_rows;
    run.wire_row += task.num_rows;
    run.num_rows -= task.num_rows;
  }
}

}  // namespace

std::vector<std::int64_t> WireOrder::peer_bytes(std::int64_t row_bytes) const {
  std::vector<std::int64_t> bytes;
  for (const std::int64_t rows : peer_rows) bytes.push_back(rows * row_bytes);
  return bytes;
}

WireOrder wire_order(std::span<const PeerRows> records, std::int32_t num_ranks) {
  WireOrder order;
  order.peer_rows.resize(static_cast<std::size_t>(num_ranks));
  std::vector<PeerRows> sorted(records.begin(), records.end());
  std::ranges::stable_sort(sorted, {}, &PeerRows::peer);
  RowTask run;
  bool has_one_shift = true;
  for (const PeerRows& record : sorted) {
    MAGI_CHECK(record.peer >= 0 && record.peer < num_ranks);
    if (record.num_rows == 0) continue;
    const auto wire_row = static_cast<std::int32_t>(order.num_rows);
    if (run.num_rows == 0 || run.local_row + run.num_rows != record.row) {
      has_one_shift = has_one_shift && run.num_rows == 0;
      add_tasks(order.tasks, run);
      run = {.local_row = record.row, .wire_row = wire_row};
    }
    run.num_rows += record.num_rows;
    order.num_rows += record.num_rows;
    order.peer_rows[static_cast<std::size_t>(record.peer)] += record.num_rows;
  }
  add_tasks(order.tasks, run);
  if (has_one_shift) order.shift = run.local_row - run.wire_row;
  return order;
}

SumTable sum_table(const WireOrder& owned) {
  // Cut every task at every task's ends, so that a piece has the same parts in all of its rows.
  std::vector<std::int32_t> bounds;
  for (const RowTask& task : owned.tasks) {
    bounds.push_back(task.local_row);
    bounds.push_back(task.local_row + task.num_rows);
  }
  std::ranges::sort(bounds);
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  std::vector<RowTask> pieces;
  for (const RowTask& task : owned.tasks) {
    auto bound = std::ranges::upper_bound(bounds, task.local_row);
    for (std::int32_t row = task.local_row; row < task.local_row + task.num_rows; ++bound) {
      pieces.push_back({row, task.wire_row + row - task.local_row, *bound - row});
      row = *bound;
    }
  }
  // Wire rows ascend with the ranks.
  std::ranges::sort(
      pieces, {}, [](const RowTask& piece) { return std::pair(piece.local_row, piece.wire_row); });
  SumTable table;
  for (const RowTask& piece : pieces) {
    if (table.tasks.empty() || table.tasks.back().row != piece.local_row) {
      table.tasks.push_back({.row = piece.local_row,
                             .num_rows = piece.num_rows,
                             .first_part = static_cast<std::int32_t>(table.parts.size())});
    }
    table.parts.push_back(piece.wire_row);
    ++table.tasks.back().num_parts;
  }
  return table;
}

}  // namespace magi::comm
