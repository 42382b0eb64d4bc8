// SPDX-License-Identifier: Apache-2.0
#include "plan/check/structure.hpp"

#include <algorithm>
#include <tuple>

#include "magi/error.hpp"
#include "plan/check/steps.hpp"
#include "plan/cost/flat.hpp"
#include "plan/value/config.hpp"

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

/// Segment 0 holds the rank's rows of the placement, the others received ones.
void check_space(const Plan& plan, std::size_t rank, Space space, Problems& problems) {
  const bool is_keys = space == Space::Keys;
  const char* name = name_of(space);
  const auto& segments = space_of(plan.ranks[rank], space).segments;
  const std::size_t num_segments = space_of(plan.ranks[0], space).segments.size();
  if (segments.empty() || segments.size() != num_segments || num_segments > kMaxSegments) {
    problems.add("rank ", rank, " has ", segments.size(), " ", name, " segments, rank 0 has ",
                 num_segments, "; at most ", kMaxSegments);
    return;
  }
  const Placement& placement = is_keys ? plan.placement_k : plan.placement_q;
  const std::int64_t rows = rows_of(placement, rank);
  const Segment& own = segments.front();
  if (own.owner != static_cast<std::int32_t>(rank) || own.num_rows != rows) {
    problems.add("rank ", rank, ": ", name, " segment 0 has owner ", own.owner, ", ", own.num_rows,
                 " rows and not owner ", rank, ", ", rows, " rows");
  }
  for (std::size_t s = 1; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    if (segment.owner != kManyOwners || segment.num_rows < 0 ||
        segment.num_rows > placement.num_rows) {
      problems.add("rank ", rank, ": ", name, " segment ", s, " has owner ", segment.owner, ", ",
                   segment.num_rows, " rows");
    }
  }
}

bool is_inside(const BandSlice& slice, std::int32_t rows_q, std::int32_t rows_k) {
  return slice.q0 >= 0 && slice.q0 <= slice.q1 && slice.q1 <= rows_q && slice.k0 >= 0 &&
         slice.k0 <= slice.k1 && slice.k1 <= rows_k && slice.d_min >= -kBandInfinity &&
         slice.d_min <= kBandInfinity && slice.d_max >= -kBandInfinity &&
         slice.d_max <= kBandInfinity;
}

bool is_range(Range range, std::int64_t end) {
  return range.begin >= 0 && range.begin <= range.end && range.end <= end;
}

bool is_index(std::int32_t index, std::size_t size) {
  return index >= 0 && static_cast<std::size_t>(index) < size;
}

/// Straight, or by node where there are several; alike for all exchanges of the same rows.
void check_hop(const Plan& plan, std::size_t index, Problems& problems) {
  const Exchange& exchange = plan.exchanges[index];
  const std::int32_t node = plan.config.devices_per_node;
  const bool are_nodes = node > 0 && node < plan.config.num_ranks;
  if (exchange.hop != 0 && (exchange.hop != 1 || !are_nodes)) {
    problems.add("exchange ", index, " is of hop ", exchange.hop,
                 "; 0, the direct way, and between several nodes 1 are the only ones");
    return;
  }
  for (std::size_t e = 0; e < index; ++e) {
    const Exchange& other = plan.exchanges[e];
    if (other.segment != exchange.segment || other.hop == exchange.hop) continue;
    if (space_of(other.role) != space_of(exchange.role)) continue;
    problems.add("exchange ", index, " is of hop ", exchange.hop, ", exchange ", e,
                 " of the same rows of hop ", other.hop);
    return;
  }
}

void check_exchanges(const Plan& plan, Problems& problems) {
  if (plan.exchanges.size() > std::size_t{kNumRoles} * kMaxDegree) {
    problems.add("the plan has ", plan.exchanges.size(), " exchanges; at most ",
                 kNumRoles * kMaxDegree);
  }
  for (std::size_t e = 0; e < plan.exchanges.size() && !problems.is_full(); ++e) {
    const Exchange& exchange = plan.exchanges[e];
    const auto role = static_cast<std::int32_t>(exchange.role);
    check_hop(plan, e, problems);
    if (role < 0 || role >= kNumRoles || exchange.segment < 1 ||
        !is_index(exchange.segment,
                  space_of(plan.ranks[0], space_of(exchange.role)).segments.size()) ||
        !is_range(exchange.heads, plan.config.num_heads_kv) || exchange.heads.empty() ||
        exchange.stage < 0 || exchange.stage > kMaxDegree) {
      problems.add("exchange ", e, " has role ", role, ", segment ", exchange.segment, ", heads ",
                   exchange.heads.begin, " to ", exchange.heads.end, ", stage ", exchange.stage);
    }
  }
}

void check_attends(const Plan& plan, std::size_t rank, Problems& problems) {
  const RankPlan& own = plan.ranks[rank];
  if (own.attends.size() > kMaxAttends) {
    problems.add("rank ", rank, " has ", own.attends.size(), " attends; at most ", kMaxAttends);
    return;
  }
  std::vector<bool> is_read(own.slices.size(), false);
  for (std::size_t i = 0; i < own.attends.size(); ++i) {
    const Attend& attend = own.attends[i];
    if (!is_index(attend.q_segment, own.q.segments.size()) ||
        !is_index(attend.k_segment, own.k.segments.size()) ||
        !is_range(attend.heads, plan.config.num_heads_kv) || attend.heads.empty() ||
        !is_range(attend.slices, static_cast<std::int64_t>(own.slices.size()))) {
      problems.add("rank ", rank, ": attend ", i, " points outside its tables");
      continue;
    }
    const Segment& q = own.q.segments[static_cast<std::size_t>(attend.q_segment)];
    const Segment& k = own.k.segments[static_cast<std::size_t>(attend.k_segment)];
    for (std::int32_t s = attend.slices.begin; s < attend.slices.end; ++s) {
      const auto index = static_cast<std::size_t>(s);
      is_read[index] = true;
      if (!is_inside(own.slices[index], q.num_rows, k.num_rows)) {
        problems.add("rank ", rank, ": slice ", s, " of attention call ", i,
                     " leaves its segments");
      }
    }
  }
  const auto unread = std::find(is_read.begin(), is_read.end(), false);
  if (unread != is_read.end()) {
    problems.add("rank ", rank, ": no attention call reads slice ", unread - is_read.begin());
  }
}

void check_steps(const Plan& plan, std::size_t rank, bool is_backward, Problems& problems) {
  const RankPlan& own = plan.ranks[rank];
  const std::vector<Step>& steps = is_backward ? own.backward : own.forward;
  if (steps.size() > plan.exchanges.size() + own.attends.size()) {
    problems.add("rank ", rank, " has ", steps.size(), " steps in the ", pass_name(is_backward));
    return;
  }
  for (std::size_t i = 0; i < steps.size() && !problems.is_full(); ++i) {
    const Step& step = steps[i];
    const bool is_exchange = step.kind == StepKind::Exchange;
    const bool is_known = is_exchange || step.kind == StepKind::Attend;
    const bool is_earlier = std::ranges::all_of(step.after, [i](std::int32_t before) {
      return before >= -1 && before < static_cast<std::int32_t>(i);
    });
    if (!is_known || !is_earlier ||
        !is_index(step.index, is_exchange ? plan.exchanges.size() : own.attends.size())) {
      problems.add("rank ", rank, ": step ", i, " of the ", pass_name(is_backward),
                   " points outside the tables or to a later step");
    }
  }
}

bool fits(std::int32_t row, std::int32_t num_rows, std::int32_t limit) {
  return row >= 0 && num_rows >= 1 && num_rows <= limit && row <= limit - num_rows;
}

void check_transfers(const Plan& plan, Problems& problems) {
  const auto num_ranks = static_cast<std::int32_t>(plan.ranks.size());
  for (std::size_t i = 0; i < plan.transfers.size() && !problems.is_full(); ++i) {
    const Transfer& t = plan.transfers[i];
    const bool is_known = t.space == Space::Keys || t.space == Space::Queries;
    if (!is_known || t.src < 0 || t.src >= num_ranks || t.dst < 0 || t.dst >= num_ranks ||
        t.dst_segment < 1 ||
        !is_index(t.dst_segment, space_of(plan.ranks[0], t.space).segments.size())) {
      problems.add("transfer ", i, " goes from rank ", t.src, " to segment ", t.dst_segment,
                   " of rank ", t.dst);
      continue;
    }
    const TokenSpace& dst = space_of(plan.ranks[static_cast<std::size_t>(t.dst)], t.space);
    const TokenSpace& src = space_of(plan.ranks[static_cast<std::size_t>(t.src)], t.space);
    if (!fits(t.src_row, t.num_rows, src.segments[0].num_rows) ||
        !fits(t.dst_row, t.num_rows,
              dst.segments[static_cast<std::size_t>(t.dst_segment)].num_rows)) {
      problems.add("transfer ", i, ": ", t.num_rows, " rows from ", t.src_row, " to ", t.dst_row,
                   " leave rank ", t.src, "'s or rank ", t.dst, "'s rows");
    }
    if (i == 0) continue;
    const auto order = [](const Transfer& a) {
      return std::tuple(a.space, a.dst, a.dst_segment, a.dst_row);
    };
    if (order(t) <= order(plan.transfers[i - 1])) {
      problems.add("transfer ", i, " to row ", t.dst_row, " of segment ", t.dst_segment,
                   " of rank ", t.dst, " stands behind one that goes further");
    }
  }
}

void check_report(const Plan& plan, Problems& problems) {
  const std::size_t num_ranks = plan.ranks.size();
  const PlanReport& report = plan.report;
  if (report.rank_area.size() != num_ranks || report.rank_rows.size() != num_ranks ||
      report.remote_rows.size() != num_ranks || report.rank_memory.size() != num_ranks ||
      (!report.rank_runs.empty() && report.rank_runs.size() != num_ranks) ||
      report.pair_bytes.size() != num_ranks * num_ranks) {
    problems.add("the report's tables are not for ", num_ranks, " ranks");
  }
}

/// The tables of a plan of one head share, whose placements are sound.
void check_rank_tables(const Plan& plan, Problems& problems) {
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    check_space(plan, r, Space::Queries, problems);
    check_space(plan, r, Space::Keys, problems);
  }
  if (!problems.empty()) return;
  check_exchanges(plan, problems);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    check_attends(plan, r, problems);
    for (const bool is_backward : {false, true}) check_steps(plan, r, is_backward, problems);
  }
  check_transfers(plan, problems);
  if (!problems.empty()) return;
  check_exchange_heads(plan, problems);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) check_passes(plan, r, problems);
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
  check_report(plan, problems);
  if (plan.stages_in_flight < 0 || plan.stages_in_flight > kMaxDegree) {
    problems.add("the plan has memory for ", plan.stages_in_flight, " stages; 0, for all, to ",
                 kMaxDegree, " are the only ones");
  }
  if (!problems.empty()) return problems.take();
  try {
    validate_shares(plan);
  } catch (const InvalidArgument& error) {
    problems.add(error.what());
    return problems.take();
  }
  if (plan.num_head_shares == 1) {
    check_rank_tables(plan, problems);
  } else {
    check_rank_tables(flat_plan(plan), problems);
  }
  return problems.take();
}

}  // namespace magi::planner
