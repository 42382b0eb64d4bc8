// SPDX-License-Identifier: Apache-2.0
#include "plan/tables/needs.hpp"

#include <algorithm>

namespace magi::planner {
namespace {

/// Slices in order of q0 (then of position): indices, or nothing where they already are.
std::vector<std::int32_t> order_by_q(const std::vector<BandSlice>& slices) {
  const auto less = [](const BandSlice& a, const BandSlice& b) { return a.q0 < b.q0; };
  if (std::is_sorted(slices.begin(), slices.end(), less)) return {};
  std::vector<std::int32_t> order(slices.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const std::int32_t qa = slices[static_cast<std::size_t>(a)].q0;
    const std::int32_t qb = slices[static_cast<std::size_t>(b)].q0;
    return qa != qb ? qa < qb : a < b;
  });
  return order;
}

/// Fills cuts and run_begin: every run against the slices that reach it.
void cut_slices(const Mask& mask, const Layout& layout, Needs& needs) {
  const std::vector<std::int32_t> order = order_by_q(mask.slices);
  std::vector<const BandSlice*> active;
  needs.cuts.reserve(mask.slices.size() + layout.runs.size());
  needs.run_begin.reserve(layout.runs.size() + 1);
  needs.run_begin.push_back(0);
  std::size_t next = 0;
  for (const RowRun& run : layout.runs) {
    std::erase_if(active, [&](const BandSlice* slice) { return slice->q1 <= run.begin; });
    for (; next < mask.slices.size(); ++next) {
      const std::size_t index = order.empty() ? next : static_cast<std::size_t>(order[next]);
      const BandSlice& slice = mask.slices[index];
      if (slice.q0 >= run.end) break;
      if (slice.q1 > run.begin) active.push_back(&slice);
    }
    for (const BandSlice* slice : active) {
      const BandSlice part = shrink(cut_q(*slice, {run.begin, run.end}));
      if (part.q1 > part.q0) needs.cuts.push_back(part);
    }
    needs.run_begin.push_back(needs.cuts.size());
  }
}

}  // namespace

std::int32_t append_missing(Range rows, std::span<const std::int32_t> own_runs,
                            const Layout& layout, std::size_t& own, std::vector<Range>& missing) {
  std::int32_t added = 0;
  const auto append = [&](std::int32_t begin, std::int32_t end) {
    missing.push_back({begin, end});
    added += end - begin;
  };
  std::int32_t row = rows.begin;
  while (row < rows.end) {
    while (own < own_runs.size() &&
           layout.runs[static_cast<std::size_t>(own_runs[own])].end <= row) {
      ++own;
    }
    if (own == own_runs.size()) {
      append(row, rows.end);
      break;
    }
    const RowRun& run = layout.runs[static_cast<std::size_t>(own_runs[own])];
    if (run.begin > row) append(row, std::min(run.begin, rows.end));
    row = run.end;
  }
  return added;
}

Needs find_needs(const Mask& mask, const Layout& layout_q, const Layout& layout_k) {
  Needs needs;
  cut_slices(mask, layout_q, needs);
  const std::size_t num_ranks = layout_q.rank_rows.size();
  needs.rank_begin.reserve(num_ranks + 1);
  needs.rank_begin.push_back(0);
  needs.remote_rows.reserve(num_ranks);
  // The keys a cut sees are one interval (both ends of a row's keys move by at most one per row),
  // and its shrunk k range is exactly that.
  std::vector<Range> seen;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    seen.clear();
    for (const std::int32_t run : layout_q.runs_of(static_cast<std::int32_t>(rank))) {
      for (const BandSlice& cut : needs.cuts_of_run(run)) seen.push_back({cut.k0, cut.k1});
    }
    std::ranges::sort(seen, {}, &Range::begin);
    const auto own_runs = layout_k.runs_of(static_cast<std::int32_t>(rank));
    std::size_t own = 0;
    std::int32_t rows = 0;
    for (std::size_t i = 0; i < seen.size();) {
      Range keys = seen[i];
      for (++i; i < seen.size() && seen[i].begin <= keys.end; ++i) {
        keys.end = std::max(keys.end, seen[i].end);
      }
      rows += append_missing(keys, own_runs, layout_k, own, needs.remote);
    }
    needs.remote_rows.push_back(rows);
    needs.rank_begin.push_back(needs.remote.size());
  }
  return needs;
}

}  // namespace magi::planner
