// SPDX-License-Identifier: Apache-2.0
#include "comm/wire_order.hpp"

#include <algorithm>
#include <tuple>

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

WireOrder wire_order(std::span<const PeerRows> records, std::int32_t rank, std::int32_t num_ranks) {
  WireOrder order;
  order.peer_rows.resize(static_cast<std::size_t>(num_ranks));
  std::vector<PeerRows> sorted(records.begin(), records.end());
  std::ranges::stable_sort(sorted, {}, &PeerRows::peer);
  RowTask run;
  std::int32_t run_peer = 0;
  const auto end_run = [&] {
    add_tasks(run_peer == rank ? order.own_tasks : order.tasks, run);
    run = {};
  };
  for (const PeerRows& record : sorted) {
    MAGI_CHECK(record.peer >= 0 && record.peer < num_ranks);
    if (record.num_rows == 0) continue;
    std::int64_t& count = record.peer == rank ? order.num_own_rows : order.num_rows;
    // Rows of lower and of higher ranks are apart, as the own rank's may be added between them.
    const bool is_on = (run_peer < rank) == (record.peer < rank) &&
                       (run_peer == rank) == (record.peer == rank) &&
                       run.local_row + run.num_rows == record.row;
    if (!is_on) {
      end_run();
      run = {.local_row = record.row, .wire_row = static_cast<std::int32_t>(count)};
    }
    run_peer = record.peer;
    run.num_rows += record.num_rows;
    count += record.num_rows;
    if (record.peer < rank) order.rows_before_own += record.num_rows;
    if (record.peer == rank) continue;
    order.peer_rows[static_cast<std::size_t>(record.peer)] += record.num_rows;
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
                             .first_part = static_cast<std::int32_t>(table.parts.size())});
    }
    table.parts.push_back(piece.wire_row);
    ++table.tasks.back().num_parts;
  }
  return table;
}

}  // namespace magi::comm
