// SPDX-License-Identifier: Apache-2.0
#include "plan/check_structure.hpp"

#include <algorithm>

#include "magi/error.hpp"
#include "plan/config.hpp"

namespace magi::planner {
namespace {

void check_placement(const Placement& placement, const char* name, std::int32_t rows,
                     std::int32_t num_ranks, Problems& problems) {
  if (placement.num_ranks != num_ranks) {
    problems.add(name, " is for ", placement.num_ranks, " ranks, the config for ", num_ranks);
    return;
  }
  if (placement.num_rows < rows || placement.num_rows > kMaxRows || placement.chunk_size < 1) {
    problems.add(name, " holds ", placement.num_rows, " rows in chunks of ", placement.chunk_size,
                 ", the mask has ", rows, " rows");
    return;
  }
  const std::int64_t chunks =
      (std::int64_t{placement.num_rows} + placement.chunk_size - 1) / placement.chunk_size;
  const auto num_chunks = static_cast<std::size_t>(chunks);
  if (placement.chunk_rank.size() != num_chunks || placement.rank_chunks.size() != num_chunks ||
      placement.rank_begin.size() != static_cast<std::size_t>(num_ranks) + 1 ||
      placement.rank_begin.front() != 0 || placement.rank_begin.back() != chunks) {
    problems.add(name, " has tables that do not list its ", chunks, " chunks");
    return;
  }
  for (std::size_t r = 0; r < static_cast<std::size_t>(num_ranks); ++r) {
    const std::int32_t begin = placement.rank_begin[r];
    const std::int32_t end = placement.rank_begin[r + 1];
    if (begin > end || end > chunks) {
      problems.add(name, ".rank_begin descends at rank ", r);
      return;
    }
    std::int32_t previous = -1;
    for (std::int32_t i = begin; i < end; ++i) {
      const std::int32_t chunk = placement.rank_chunks[static_cast<std::size_t>(i)];
      if (chunk <= previous || chunk >= chunks ||
          placement.chunk_rank[static_cast<std::size_t>(chunk)] != static_cast<std::int32_t>(r)) {
        problems.add(name, " lists chunk ", chunk, " for rank ", r,
                     " out of order or against chunk_rank");
        return;
      }
      previous = chunk;
    }
  }
}

std::int64_t rows_of(const Placement& placement, std::size_t rank) {
  std::int64_t rows = 0;
  for (std::int32_t i = placement.rank_begin[rank]; i < placement.rank_begin[rank + 1]; ++i) {
    const std::int64_t begin =
        std::int64_t{placement.rank_chunks[static_cast<std::size_t>(i)]} * placement.chunk_size;
    rows += std::min<std::int64_t>(placement.chunk_size, placement.num_rows - begin);
  }
  return rows;
}

void check_own_segment(const TokenSpace& space, const char* name, std::size_t rank,
                       std::int64_t rows, Problems& problems) {
  const Segment& own = space.segments.front();
  if (own.owner != static_cast<std::int32_t>(rank) || own.num_rows != rows || own.wave != 0) {
    problems.add("rank ", rank, ": segment 0 of ", name, " has owner ", own.owner, ", ",
                 own.num_rows, " rows, wave ", own.wave, " and not owner ", rank, ", ", rows,
                 " rows, wave 0");
  }
}

void check_spaces(const Plan& plan, std::size_t rank, Problems& problems) {
  const RankPlan& own = plan.ranks[rank];
  if (own.q.segments.size() != 1 || own.k.segments.empty() ||
      own.k.segments.size() != plan.ranks[0].k.segments.size()) {
    problems.add("rank ", rank, " has ", own.q.segments.size(), " query and ",
                 own.k.segments.size(), " key segments; rank 0 has ",
                 plan.ranks[0].k.segments.size(), " key segments");
    return;
  }
  check_own_segment(own.q, "q", rank, rows_of(plan.placement_q, rank), problems);
  check_own_segment(own.k, "k", rank, rows_of(plan.placement_k, rank), problems);
  for (std::size_t s = 1; s < own.k.segments.size(); ++s) {
    const Segment& segment = own.k.segments[s];
    if (segment.owner != kManyOwners || segment.num_rows < 0 ||
        segment.num_rows > plan.placement_k.num_rows || segment.wave < 0 ||
        segment.wave >= plan.num_waves) {
      problems.add("rank ", rank, ": key segment ", s, " has owner ", segment.owner, ", ",
                   segment.num_rows, " rows, wave ", segment.wave);
    }
  }
}

bool is_inside(const BandSlice& slice, std::int32_t rows_q, std::int32_t rows_k) {
  return slice.q0 >= 0 && slice.q0 <= slice.q1 && slice.q1 <= rows_q && slice.k0 >= 0 &&
         slice.k0 <= slice.k1 && slice.k1 <= rows_k && slice.d_min >= -kBandInfinity &&
         slice.d_min <= kBandInfinity && slice.d_max >= -kBandInfinity &&
         slice.d_max <= kBandInfinity;
}

void check_waves(const Plan& plan, std::size_t rank, Problems& problems) {
  const RankPlan& own = plan.ranks[rank];
  const auto num_slices = static_cast<std::int64_t>(own.slices.size());
  if (own.waves.size() != static_cast<std::size_t>(plan.num_waves)) {
    problems.add("rank ", rank, " has ", own.waves.size(), " waves, the plan ", plan.num_waves);
    return;
  }
  std::vector<bool> is_read(own.slices.size(), false);
  for (std::size_t w = 0; w < own.waves.size(); ++w) {
    const Wave& wave = own.waves[w];
    const auto num_segments = static_cast<std::int32_t>(own.k.segments.size());
    if (wave.k_segment < 0 || wave.k_segment >= num_segments || wave.heads.begin < 0 ||
        wave.heads.begin > wave.heads.end || wave.heads.end > plan.config.num_heads_kv ||
        wave.slices.begin < 0 || wave.slices.begin > wave.slices.end ||
        wave.slices.end > num_slices) {
      problems.add("rank ", rank, ": wave ", w, " points outside its tables");
      continue;
    }
    const auto segment = static_cast<std::size_t>(wave.k_segment);
    for (std::int32_t s = wave.slices.begin; s < wave.slices.end; ++s) {
      const auto index = static_cast<std::size_t>(s);
      is_read[index] = true;
      if (!is_inside(own.slices[index], own.q.segments[0].num_rows,
                     own.k.segments[segment].num_rows)) {
        problems.add("rank ", rank, ": slice ", s, " of wave ", w, " leaves its segments");
      }
    }
  }
  const auto unread = std::find(is_read.begin(), is_read.end(), false);
  if (unread != is_read.end()) {
    problems.add("rank ", rank, ": no wave reads slice ", unread - is_read.begin());
  }
}

/// Waves are collective: what a rank exchanges for one must be the same heads and segment on all.
/// Wave 0 has no exchange, or fills the buffer that begins with the own rows.
bool is_wave_sound(const Plan& plan, std::size_t rank, std::size_t w) {
  const RankPlan& own = plan.ranks[rank];
  const Wave& wave = own.waves[w];
  if (w > 0) {
    const Wave& first = plan.ranks[0].waves[w];
    return wave.k_segment >= 1 && wave.k_segment == first.k_segment && wave.heads == first.heads;
  }
  if (wave.heads != Range{0, plan.config.num_heads_kv}) return false;
  const bool has_buffer = plan.num_waves == 1 && own.k.segments.size() > 1;
  if (wave.k_segment == 0) return !has_buffer || own.k.segments[1].num_rows == 0;
  return has_buffer && wave.k_segment == 1 &&
         own.k.segments[1].num_rows >= own.k.segments[0].num_rows;
}

void check_waves_agree(const Plan& plan, std::size_t rank, Problems& problems) {
  for (std::size_t w = 0; w < plan.ranks[rank].waves.size(); ++w) {
    if (is_wave_sound(plan, rank, w)) continue;
    const Wave& wave = plan.ranks[rank].waves[w];
    problems.add("rank ", rank, ": wave ", w, " reads heads ", wave.heads.begin, " to ",
                 wave.heads.end, " of key segment ", wave.k_segment,
                 ", which the other ranks or the segment's rows contradict");
  }
}

bool fits(std::int32_t row, std::int32_t num_rows, std::int32_t limit) {
  return row >= 0 && num_rows >= 1 && num_rows <= limit && row <= limit - num_rows;
}

void check_transfers(const Plan& plan, Problems& problems) {
  const auto num_ranks = static_cast<std::int32_t>(plan.ranks.size());
  const auto num_segments = static_cast<std::int32_t>(plan.ranks[0].k.segments.size());
  for (std::size_t i = 0; i < plan.transfers.size() && !problems.is_full(); ++i) {
    const Transfer& t = plan.transfers[i];
    if (t.src < 0 || t.src >= num_ranks || t.dst < 0 || t.dst >= num_ranks || t.src == t.dst ||
        t.dst_segment < 1 || t.dst_segment >= num_segments) {
      problems.add("transfer ", i, " goes from rank ", t.src, " to segment ", t.dst_segment,
                   " of rank ", t.dst);
      continue;
    }
    const RankPlan& dst = plan.ranks[static_cast<std::size_t>(t.dst)];
    const RankPlan& src = plan.ranks[static_cast<std::size_t>(t.src)];
    if (!fits(t.src_row, t.num_rows, src.k.segments[0].num_rows) ||
        !fits(t.dst_row, t.num_rows,
              dst.k.segments[static_cast<std::size_t>(t.dst_segment)].num_rows)) {
      problems.add("transfer ", i, ": ", t.num_rows, " rows from ", t.src_row, " to ", t.dst_row,
                   " leave rank ", t.src, "'s or rank ", t.dst, "'s rows");
    }
  }
}

void check_report(const Plan& plan, Problems& problems) {
  const std::size_t num_ranks = plan.ranks.size();
  const PlanReport& report = plan.report;
  if (report.rank_area.size() != num_ranks || report.rank_rows.size() != num_ranks ||
      report.remote_rows.size() != num_ranks || report.pair_bytes.size() != num_ranks * num_ranks) {
    problems.add("the report's tables are not for ", num_ranks, " ranks");
  }
}

}  // namespace

std::vector<std::string> check_structure(const Plan& plan) {
  Problems problems;
  try {
    validate_config(plan.config);
    validate_sizes(plan.mask, plan.config);
  } catch (const InvalidArgument& error) {
    problems.add(error.what());
    return problems.take();
  }
  const std::int32_t num_ranks = plan.config.num_ranks;
  check_placement(plan.placement_q, "placement_q", plan.mask.rows_q, num_ranks, problems);
  check_placement(plan.placement_k, "placement_k", plan.mask.rows_k, num_ranks, problems);
  if (plan.ranks.size() != static_cast<std::size_t>(num_ranks)) {
    problems.add("the plan has ", plan.ranks.size(), " ranks, its config ", num_ranks);
  }
  if (plan.num_waves < 1) problems.add("the plan has ", plan.num_waves, " waves");
  check_report(plan, problems);
  if (!problems.empty()) return problems.take();
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) check_spaces(plan, r, problems);
  if (!problems.empty()) return problems.take();
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) check_waves(plan, r, problems);
  check_transfers(plan, problems);
  if (!problems.empty()) return problems.take();
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) check_waves_agree(plan, r, problems);
  return problems.take();
}

}  // namespace magi::planner
