// SPDX-License-Identifier: Apache-2.0
#include "comm/peer_places.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace magi::comm {
namespace {

/// Rows of a sender and as many of the receiver.
struct RowPair {
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t num_rows = 0;
};

/// The rows that rank `src` owns and rank `dst` needs, in the order of their records.
std::vector<RowPair> pair_rows(std::span<const RowExchange> all, std::int32_t src,
                               std::int32_t dst) {
  const auto owned = std::span(all[static_cast<std::size_t>(src)].owned);
  std::vector<RowPair> pairs;
  auto next = owned.begin();
  std::int32_t passed = 0;  // of the record at `next`
  const auto skip = [&] {
    while (next != owned.end() && (next->peer != dst || next->num_rows == passed)) {
      ++next;
      passed = 0;
    }
  };
  const auto disagree = [&] {
    return InvalidArgument("rows.needed of rank " + std::to_string(dst) +
                           " are other rows of rank " + std::to_string(src) +
                           " than that owns; allowed: as many");
  };
  for (const PeerRows& needed : all[static_cast<std::size_t>(dst)].needed) {
    if (needed.peer != src) continue;
    for (std::int32_t done = 0; done < needed.num_rows;) {
      skip();
      if (next == owned.end()) throw disagree();
      const std::int32_t count = std::min(needed.num_rows - done, next->num_rows - passed);
      pairs.push_back({next->row + passed, needed.row + done, count});
      passed += count;
      done += count;
    }
  }
  skip();
  if (next != owned.end()) throw disagree();
  return pairs;
}

std::int64_t count_of(std::span<const PeerRows> records, std::int32_t peer) {
  std::int64_t count = 0;
  for (const PeerRows& record : records) count += record.peer == peer ? record.num_rows : 0;
  return count;
}

/// Rows on the wire of `rank` in front of those of `peer`: rows lie by peer, own ones are not
/// there.
std::int64_t rows_before(std::span<const PeerRows> records, std::int32_t rank, std::int32_t peer) {
  std::int64_t count = 0;
  for (const PeerRows& record : records) {
    if (record.peer < peer && record.peer != rank) count += record.num_rows;
  }
  return count;
}

void add_tasks(std::vector<PushTask>& tasks, RowPair rows, std::int32_t peer) {
  if (!tasks.empty()) {
    // Rows that go on where the task before them ends are one run.
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

/// Orders tasks, which are sorted by peer, so that all peers are sent to at once: each peer's are
/// spread evenly over the list, those of the next rank first.
void spread(std::vector<PushTask>& tasks, std::int32_t rank, std::int32_t num_ranks) {
  struct Place {
    double position;
    std::int32_t turn;
    PushTask task;
  };
  std::vector<double> counts(static_cast<std::size_t>(num_ranks)), seen(counts.size());
  for (const PushTask& task : tasks) ++counts[static_cast<std::size_t>(task.peer)];
  std::vector<Place> places;
  for (const PushTask& task : tasks) {
    const auto peer = static_cast<std::size_t>(task.peer);
    const std::int32_t turn = (task.peer - rank - 1 + num_ranks) % num_ranks;
    places.push_back({++seen[peer] / counts[peer], turn, task});
  }
  std::ranges::stable_sort(places, [](const Place& a, const Place& b) {
    return a.position != b.position ? a.position < b.position : a.turn < b.turn;
  });
  std::ranges::transform(places, tasks.begin(), &Place::task);
  std::stable_partition(tasks.begin(), tasks.end(),
                        [rank](const PushTask& task) { return task.peer != rank; });
}

/// What all ranks lay out their memory by.
void find_most(std::span<const RowExchange> all, PeerPlaces& places) {
  const auto num_ranks = static_cast<std::int32_t>(all.size());
  for (std::int32_t other = 0; other < num_ranks; ++other) {
    const RowExchange& each = all[static_cast<std::size_t>(other)];
    std::int64_t needed = 0, owned = 0;
    for (const PeerRows& record : each.needed) {
      places.most_rows = std::max<std::int64_t>(places.most_rows, record.row + record.num_rows);
      needed += record.num_rows;
    }
    for (const PeerRows& record : each.owned) owned += record.num_rows;
    places.most_needed = std::max(places.most_needed, needed);
    places.most_remote = std::max(places.most_remote, needed - count_of(each.needed, other));
    places.most_owned = std::max(places.most_owned, owned);
  }
}

}  // namespace

PeerPlaces peer_places(std::span<const RowExchange> all, std::int32_t rank) {
  const auto num_ranks = static_cast<std::int32_t>(all.size());
  const RowExchange& own = all[static_cast<std::size_t>(rank)];
  PeerPlaces places;
  // Every pair, so that all ranks refuse alike.
  for (std::int32_t src = 0; src < num_ranks; ++src) {
    for (std::int32_t dst = 0; dst < num_ranks; ++dst) pair_rows(all, src, dst);
  }
  for (std::int32_t peer = 0; peer < num_ranks; ++peer) {
    const RowExchange& other = all[static_cast<std::size_t>(peer)];
    auto wire_row = static_cast<std::int32_t>(rows_before(other.needed, peer, rank));
    for (const RowPair& rows : pair_rows(all, rank, peer)) {
      add_tasks(places.to_rows, rows, peer);
      if (peer == rank) continue;
      add_tasks(places.to_wire, {rows.from, wire_row, rows.num_rows}, peer);
      wire_row += rows.num_rows;
    }
    if (count_of(own.needed, peer) > 0) places.cast_sources |= std::uint64_t{1} << peer;
    if (peer == rank) {
      for (const RowPair& rows : pair_rows(all, rank, rank)) {
        places.needed_runs.push_back({rows.to, -1, rows.num_rows, rank});
      }
      continue;
    }
    wire_row = static_cast<std::int32_t>(rows_before(other.owned, peer, rank));
    for (const RowPair& rows : pair_rows(all, peer, rank)) {
      places.needed_runs.push_back({rows.to, wire_row, rows.num_rows, peer});
      add_tasks(places.to_owners, {rows.to, wire_row, rows.num_rows}, peer);
      wire_row += rows.num_rows;
    }
    if (count_of(own.owned, peer) > 0) places.reduce_sources |= std::uint64_t{1} << peer;
  }
  std::ranges::sort(places.needed_runs, {}, &PushTask::local_row);
  for (auto* tasks : {&places.to_rows, &places.to_wire, &places.to_owners}) {
    spread(*tasks, rank, num_ranks);
  }
  places.num_own_tasks =
      static_cast<std::int32_t>(std::ranges::count(places.to_rows, rank, &PushTask::peer));
  find_most(all, places);
  return places;
}

}  // namespace magi::comm
