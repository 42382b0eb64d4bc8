// SPDX-License-Identifier: Apache-2.0
#include "comm/nvlink/peer_places.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "comm/rows/row_layout.hpp"

namespace magi::comm {
namespace {

/// Rows of a sender and equally many of the receiver.
struct RowPair {
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t num_rows = 0;
};

/// Returns the rows that rank `src` owns and rank `dst` needs, in the order of their records.
std::vector<RowPair> pair_rows(std::span<const RowExchange> all, std::int32_t src,
                               std::int32_t dst) {
  const auto owned = std::span(all[static_cast<std::size_t>(src)].owned);
  std::vector<RowPair> pairs;
  auto next = owned.begin();
  std::int32_t passed = 0;  // rows of the record at `next` that are paired
  for (const PeerRows& needed : all[static_cast<std::size_t>(dst)].needed) {
    if (needed.peer != src) continue;
    for (std::int32_t done = 0; done < needed.num_rows;) {
      while (next->peer != dst || next->num_rows == passed) {
        ++next;
        passed = 0;
      }
      const std::int32_t count = std::min(needed.num_rows - done, next->num_rows - passed);
      pairs.push_back({next->row + passed, needed.row + done, count});
      passed += count;
      done += count;
    }
  }
  return pairs;
}

/// Throws if a rank needs more or fewer rows of another than that one sends. It checks every pair,
/// so that all ranks throw alike.
void check_pairs(std::span<const RowExchange> all) {
  const std::size_t num_ranks = all.size();
  std::vector<std::int64_t> missing(num_ranks * num_ranks);  // by owner, then by needing rank
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    const auto is_rank = [num_ranks](const PeerRows& record) {
      return record.peer >= 0 && static_cast<std::size_t>(record.peer) < num_ranks;
    };
    MAGI_CHECK(std::ranges::all_of(all[rank].owned, is_rank) &&
               std::ranges::all_of(all[rank].needed, is_rank));
    for (const PeerRows& record : all[rank].owned) {
      missing[rank * num_ranks + static_cast<std::size_t>(record.peer)] -= record.num_rows;
    }
    for (const PeerRows& record : all[rank].needed) {
      missing[static_cast<std::size_t>(record.peer) * num_ranks + rank] += record.num_rows;
    }
  }
  for (std::size_t pair = 0; pair < missing.size(); ++pair) {
    if (missing[pair] == 0) continue;
    throw InvalidArgument("rows.needed of rank " + std::to_string(pair % num_ranks) +
                          " are other rows of rank " + std::to_string(pair / num_ranks) +
                          " than that owns; allowed: as many");
  }
}

/// Counts the rows on the wire of `rank` before those of `peer`; own rows are not there.
std::int64_t rows_before(std::span<const PeerRows> records, std::int32_t rank, std::int32_t peer) {
  std::int64_t count = 0;
  for (const PeerRows& record : records) {
    if (record.peer < peer && record.peer != rank) count += record.num_rows;
  }
  return count;
}

void add_tasks(std::vector<PushTask>& tasks, RowPair rows, std::int32_t peer) {
  if (!tasks.empty()) {
    // Rows that continue the task before them join it.
    PushTask& last = tasks.back();
    if (last.peer == peer && last.local_row + last.num_rows == rows.from &&
        last.remote_row + last.num_rows == rows.to) {
      const std::int32_t count = std::min(kRowsPerPush - last.num_rows, rows.num_rows);
      last.num_rows += count;
      rows = {rows.from + count, rows.to + count, rows.num_rows - count};
    }
  }
  for (std::int32_t i = 0; i < rows.num_rows; i += kRowsPerPush) {
    tasks.push_back({.local_row = rows.from + i,
                     .remote_row = rows.to + i,
                     .num_rows = std::min(kRowsPerPush, rows.num_rows - i),
                     .peer = peer});
  }
}

/// Orders tasks, which are sorted by peer, so that rows leave for all peers at once: each peer's
/// tasks are spread evenly over the list, beginning with the next rank. Own tasks come last.
void spread(std::vector<PushTask>& tasks, std::int32_t rank, std::int32_t num_ranks) {
  struct Queue {
    std::span<const PushTask> tasks;
    std::size_t next = 0;
    bool is_left() const { return next < tasks.size(); }
    // Task i of n has its place at (i + 1) / n of the list.
    bool is_before(const Queue& other) const {
      return (next + 1) * other.tasks.size() < (other.next + 1) * tasks.size();
    }
  };
  const std::vector<PushTask> sorted = std::exchange(tasks, {});
  tasks.reserve(sorted.size());
  std::vector<Queue> queues;
  for (std::int32_t turn = 1; turn <= num_ranks; ++turn) {
    const std::int32_t peer = (rank + turn) % num_ranks;
    const auto begin = std::ranges::lower_bound(sorted, peer, {}, &PushTask::peer);
    const auto end = std::ranges::upper_bound(sorted, peer, {}, &PushTask::peer);
    queues.push_back({std::span(begin, end)});
  }
  const std::span<const PushTask> own = queues.back().tasks;
  queues.pop_back();
  while (tasks.size() + own.size() < sorted.size()) {
    Queue* first = nullptr;
    for (Queue& queue : queues) {
      if (queue.is_left() && (first == nullptr || queue.is_before(*first))) first = &queue;
    }
    tasks.push_back(first->tasks[first->next++]);
  }
  tasks.insert(tasks.end(), own.begin(), own.end());
}

/// Returns the owned rows that other ranks need.
std::vector<RowRun> find_shared(std::span<const PeerRows> owned, std::int32_t rank) {
  std::vector<RowRun> runs, joined;
  for (const PeerRows& record : owned) {
    if (record.peer == rank || record.num_rows == 0) continue;
    runs.push_back({record.row, record.row + record.num_rows});
  }
  std::ranges::sort(runs, {}, &RowRun::begin);
  for (const RowRun& run : runs) {
    if (joined.empty() || run.begin > joined.back().end) joined.push_back(run);
    joined.back().end = std::max(joined.back().end, run.end);
  }
  return joined;
}

/// Returns the first shared run that ends after an own row.
std::vector<RowRun>::const_iterator shared_from(const PeerPlaces& places, std::int32_t row) {
  return std::ranges::upper_bound(places.shared, row, {}, &RowRun::end);
}

/// Adds own rows that this rank needs itself, cut at the borders of shared runs.
void add_own_runs(PeerPlaces& places, RowPair rows, std::int32_t rank) {
  while (rows.num_rows > 0) {
    const auto next = shared_from(places, rows.from);
    std::int32_t count = rows.num_rows;
    if (next != places.shared.end()) {
      const std::int32_t cut = next->begin > rows.from ? next->begin : next->end;
      count = std::min(count, cut - rows.from);
    }
    places.needed_runs.push_back({rows.to, rows.from, count, rank});
    rows = {rows.from + count, rows.to + count, rows.num_rows - count};
  }
}

/// Finds the sizes by which all ranks lay out their memory.
void find_most(std::span<const RowExchange> all, PeerPlaces& places) {
  const auto num_ranks = static_cast<std::int32_t>(all.size());
  for (std::int32_t other = 0; other < num_ranks; ++other) {
    const RowExchange& each = all[static_cast<std::size_t>(other)];
    for (const PeerRows& record : each.needed) {
      places.most_rows = std::max<std::int64_t>(places.most_rows, record.row + record.num_rows);
    }
    const std::int64_t needed = count_rows(each.needed);
    places.most_needed = std::max(places.most_needed, needed);
    places.most_remote = std::max(places.most_remote, needed - count_rows(each.needed, other));
    places.most_owned = std::max(places.most_owned, count_rows(each.owned));
  }
}

}  // namespace

bool PeerPlaces::is_shared(const PushTask& own_run) const {
  const auto run = shared_from(*this, own_run.remote_row);
  return run != shared.end() && run->begin <= own_run.remote_row;
}

PeerPlaces peer_places(std::span<const RowExchange> all, std::int32_t rank) {
  check_pairs(all);
  const auto num_ranks = static_cast<std::int32_t>(all.size());
  const RowExchange& own = all[static_cast<std::size_t>(rank)];
  PeerPlaces places{.rank = rank};
  places.shared = find_shared(own.owned, rank);
  for (std::int32_t peer = 0; peer < num_ranks; ++peer) {
    const RowExchange& other = all[static_cast<std::size_t>(peer)];
    places.wire_begin.push_back(static_cast<std::int32_t>(rows_before(other.needed, peer, rank)));
    for (const RowPair& rows : pair_rows(all, rank, peer)) add_tasks(places.to_rows, rows, peer);
    if (count_rows(own.needed, peer) > 0) places.cast_sources |= std::uint64_t{1} << peer;
    auto wire_row = static_cast<std::int32_t>(rows_before(other.owned, peer, rank));
    for (const RowPair& rows : pair_rows(all, peer, rank)) {
      if (peer == rank) {
        add_own_runs(places, rows, rank);
        continue;
      }
      places.needed_runs.push_back({rows.to, wire_row, rows.num_rows, peer});
      wire_row += rows.num_rows;
    }
    if (peer != rank && count_rows(own.owned, peer) > 0) {
      places.reduce_sources |= std::uint64_t{1} << peer;
    }
  }
  std::ranges::sort(places.needed_runs, {}, &PushTask::local_row);
  spread(places.to_rows, rank, num_ranks);
  places.num_own_tasks =
      static_cast<std::int32_t>(std::ranges::count(places.to_rows, rank, &PushTask::peer));
  find_most(all, places);
  return places;
}

std::vector<PushTask> wire_tasks(const PeerPlaces& places) {
  std::vector<PushTask> tasks = places.to_rows;
  tasks.resize(tasks.size() - static_cast<std::size_t>(places.num_own_tasks));
  // Tasks of a peer are in the order of its records, and so are its wire rows.
  std::vector<std::int32_t> next = places.wire_begin;
  for (PushTask& task : tasks) {
    task.remote_row = std::exchange(next[static_cast<std::size_t>(task.peer)],
                                    next[static_cast<std::size_t>(task.peer)] + task.num_rows);
  }
  return tasks;
}

std::vector<PushTask> owner_tasks(const PeerPlaces& places) {
  std::vector<PushTask> runs = places.needed_runs;
  std::erase_if(runs, [&](const PushTask& run) { return run.peer == places.rank; });
  std::ranges::stable_sort(runs, {}, &PushTask::peer);
  std::vector<PushTask> tasks;
  for (const PushTask& run : runs) {
    add_tasks(tasks, {run.local_row, run.remote_row, run.num_rows}, run.peer);
  }
  spread(tasks, places.rank, static_cast<std::int32_t>(places.wire_begin.size()));
  return tasks;
}

}  // namespace magi::comm
