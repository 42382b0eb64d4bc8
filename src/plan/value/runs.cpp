// SPDX-License-Identifier: Apache-2.0
#include "plan/value/runs.hpp"

#include <algorithm>
#include <tuple>

namespace magi {
namespace {

/// A row that does not see the row before it, and the last one before that that it sees.
struct Branch {
  std::int32_t row = 0;
  std::int32_t parent = 0;
};

struct Chains {
  std::vector<Range> unlinked;   ///< rows that do not see the row before them, ascending
  std::vector<Branch> branches;  ///< those of them that see another, ascending
};

std::vector<Range> unlinked_rows(const Mask& mask) {
  std::vector<Range> linked{{mask.rows_q, mask.rows_q}};
  for (const BandSlice& s : mask.slices) {
    const Range rows{std::max(s.q0, s.k0 + 1), std::min(s.q1, s.k1 + 1)};
    if (s.d_min <= -1 && s.d_max >= -1 && !rows.empty()) linked.push_back(rows);
  }
  std::ranges::sort(linked, {}, &Range::begin);
  std::vector<Range> unlinked;
  std::int32_t at = 0;
  for (const Range& rows : linked) {
    if (at < rows.begin) unlinked.push_back({at, rows.begin});
    at = std::max(at, rows.end);
  }
  return unlinked;
}

Chains find_chains(const Mask& mask) {
  Chains chains{.unlinked = unlinked_rows(mask), .branches = {}};
  std::vector<Branch>& branches = chains.branches;
  for (const BandSlice& s : mask.slices) {
    auto rows = std::ranges::upper_bound(chains.unlinked, s.q0, {}, &Range::end);
    for (; rows != chains.unlinked.end() && rows->begin < s.q1; ++rows) {
      const std::int32_t end = std::min(rows->end, s.q1);
      for (std::int32_t row = std::max(rows->begin, s.q0); row < end; ++row) {
        const Range keys = visible_keys(s, row);
        const std::int32_t last = std::min(keys.end, row) - 1;
        if (last >= keys.begin) branches.push_back({row, last});
      }
    }
  }
  std::ranges::sort(branches, [](const Branch& a, const Branch& b) {
    return std::tie(a.row, b.parent) < std::tie(b.row, a.parent);
  });
  const auto is_same_row = [](const Branch& a, const Branch& b) { return a.row == b.row; };
  branches.erase(std::unique(branches.begin(), branches.end(), is_same_row), branches.end());
  return chains;
}

/// Rows at which runs begin, ascending.
std::vector<std::int32_t> begins_of_runs(const Chains& chains, const Plan& plan) {
  std::vector<std::int32_t> begins;
  for (const Range& rows : chains.unlinked) {
    for (std::int32_t row = rows.begin; row < rows.end; ++row) begins.push_back(row);
  }
  for (const Branch& branch : chains.branches) begins.push_back(branch.parent + 1);
  const Placement& placement = plan.placement_q;
  for (std::int32_t chunk = 1; chunk < placement.num_chunks(); ++chunk) {
    const auto c = static_cast<std::size_t>(chunk);
    const std::int32_t row = placement.chunk_rows(chunk).begin;
    if (row >= plan.mask.rows_q) break;
    if (placement.chunk_rank[c] != placement.chunk_rank[c - 1]) begins.push_back(row);
  }
  std::ranges::sort(begins);
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  return begins;
}

}  // namespace

std::vector<Run> runs_of(const Plan& plan) {
  std::vector<Run> runs;
  if (plan.mask.rows_q != plan.mask.rows_k) return runs;
  const Chains chains = find_chains(plan.mask);
  const Placement& placement = plan.placement_q;
  auto unlinked = chains.unlinked.begin();
  auto branch = chains.branches.begin();
  for (const std::int32_t row : begins_of_runs(chains, plan)) {
    if (!runs.empty()) runs.back().end = row;
    std::int32_t parent = row - 1;
    while (unlinked != chains.unlinked.end() && unlinked->end <= row) ++unlinked;
    if (unlinked != chains.unlinked.end() && unlinked->begin <= row) parent = -1;
    if (branch != chains.branches.end() && branch->row == row) parent = (branch++)->parent;
    const auto chunk = static_cast<std::size_t>(row / placement.chunk_size);
    runs.push_back({placement.chunk_rank[chunk], row, plan.mask.rows_q, parent});
  }
  std::ranges::stable_sort(runs, {}, &Run::rank);
  return runs;
}

std::vector<planner::ChunkLink> planner::links_of_chunks(const Mask& mask,
                                                         std::int32_t chunk_size) {
  std::vector<ChunkLink> links;
  if (mask.rows_q != mask.rows_k) return links;
  const Chains chains = find_chains(mask);
  auto unlinked = chains.unlinked.begin();
  for (std::int32_t chunk = 1; chunk <= (mask.rows_q - 1) / chunk_size; ++chunk) {
    const std::int32_t row = chunk * chunk_size;
    while (unlinked != chains.unlinked.end() && unlinked->end <= row) ++unlinked;
    const bool is_linked = unlinked == chains.unlinked.end() || row < unlinked->begin;
    if (is_linked) links.push_back({chunk, chunk - 1});
  }
  for (const Branch& branch : chains.branches) {
    const ChunkLink link{branch.row / chunk_size, branch.parent / chunk_size};
    if (link.child != link.parent) links.push_back(link);
  }
  return links;
}

std::vector<std::int64_t> planner::count_runs(const std::vector<ChunkLink>& links,
                                              std::span<const std::int32_t> chunk_rank,
                                              std::int32_t num_ranks) {
  std::vector<std::int64_t> runs(static_cast<std::size_t>(num_ranks), 0);
  for (const ChunkLink& link : links) {
    const std::int32_t rank = chunk_rank[static_cast<std::size_t>(link.child)];
    const bool is_after_other = chunk_rank[static_cast<std::size_t>(link.parent)] != rank;
    if (is_after_other) ++runs[static_cast<std::size_t>(rank)];
  }
  return runs;
}

std::vector<std::int64_t> planner::count_runs(const Mask& mask, const Placement& placement) {
  return count_runs(links_of_chunks(mask, placement.chunk_size), placement.chunk_rank,
                    placement.num_ranks);
}

}  // namespace magi
