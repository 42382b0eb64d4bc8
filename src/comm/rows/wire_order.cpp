// SPDX-License-Identifier: Apache-2.0
#include "comm/rows/wire_order.hpp"

#include <algorithm>
#include <tuple>

#include "base/check.hpp"

namespace magi::comm {
namespace {

void add_tasks(std::vector<RowTask>& tasks, const RowTask& run) {
  for (std::int32_t i = 0; i < run.num_rows; i += kRowsPerTask) {
    tasks.push_back(
        {run.local_row + i, run.wire_row + i, std::min(run.num_rows - i, kRowsPerTask)});
  }
}

}  // namespace

std::vector<std::int64_t> WireOrder::peer_bytes(std::int64_t row_bytes) const {
  std::vector<std::int64_t> bytes;
  for (const std::int64_t rows : peer_rows) bytes.push_back(rows * row_bytes);
  return bytes;
}

WireOrder wire_order(std::span<const PeerRows> records, std::int32_t rank, std::int32_t num_ranks) {
  WireOrder order;
  order.peer_rows.resize(static_cast<std::size_t>(num_ranks));
  std::vector<PeerRows> sorted(records.begin(), records.end());
  std::ranges::stable_sort(sorted, {}, &PeerRows::peer);
  // Rows of lower and of higher ranks are apart, as the own rank's may be added between them.
  const auto side_of = [rank](std::int32_t peer) { return (peer > rank) - (peer < rank); };
  RowTask run;
  int run_side = 0;
  const auto end_run = [&] { add_tasks(run_side == 0 ? order.own_tasks : order.tasks, run); };
  for (const PeerRows& record : sorted) {
    MAGI_CHECK(record.peer >= 0 && record.peer < num_ranks);
    if (record.num_rows == 0) continue;
    const int side = side_of(record.peer);
    std::int64_t& count = side == 0 ? order.num_own_rows : order.num_rows;
    if (side != run_side || run.local_row + run.num_rows != record.row) {
      end_run();
      run = {.local_row = record.row, .wire_row = static_cast<std::int32_t>(count)};
      run_side = side;
    }
    run.num_rows += record.num_rows;
    count += record.num_rows;
    if (side < 0) order.rows_before_own += record.num_rows;
    if (side != 0) order.peer_rows[static_cast<std::size_t>(record.peer)] += record.num_rows;
  }
  end_run();
  const auto shift_of = [](const RowTask& task) { return task.local_row - task.wire_row; };
  const std::int32_t shift = order.tasks.empty() ? 0 : shift_of(order.tasks.front());
  const auto is_shifted = [&](const RowTask& task) { return shift_of(task) == shift; };
  if (std::ranges::all_of(order.tasks, is_shifted)) order.shift = shift;
  return order;
}

SumTable sum_table(const WireOrder& owned) {
  const auto num_rows = static_cast<std::int32_t>(owned.num_rows);
  std::vector<RowTask> tasks = owned.tasks;
  for (RowTask task : owned.own_tasks) {
    task.wire_row += num_rows;
    tasks.push_back(task);
  }
  // Cut every task at every task's ends, so that a piece has the same parts in all of its rows.
  std::vector<std::int32_t> bounds;
  for (const RowTask& task : tasks) {
    bounds.push_back(task.local_row);
    bounds.push_back(task.local_row + task.num_rows);
  }
  std::ranges::sort(bounds);
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  std::vector<RowTask> pieces;
  for (const RowTask& task : tasks) {
    auto bound = std::ranges::upper_bound(bounds, task.local_row);
    for (std::int32_t row = task.local_row; row < task.local_row + task.num_rows; ++bound) {
      pieces.push_back({row, task.wire_row + row - task.local_row, *bound - row});
      row = *bound;
    }
  }
  // Wire rows ascend with the ranks, but for the own rank's.
  const auto rank_order = [&](const RowTask& piece) {
    const bool is_own = piece.wire_row >= num_rows;
    const bool is_above = !is_own && piece.wire_row >= owned.rows_before_own;
    return std::tuple(piece.local_row, is_above, is_own, piece.wire_row);
  };
  std::ranges::sort(pieces, {}, rank_order);
  SumTable table;
  for (const RowTask& piece : pieces) {
    if (table.tasks.empty() || table.tasks.back().row != piece.local_row) {
      table.tasks.push_back({.row = piece.local_row,
                             .num_rows = piece.num_rows,
                             .first_part = static_cast<std::int32_t>(table.parts.size()),
                             .sum_row = table.num_rows()});
    }
    table.parts.push_back(piece.wire_row);
    ++table.tasks.back().num_parts;
  }
  return table;
}

}  // namespace magi::comm
