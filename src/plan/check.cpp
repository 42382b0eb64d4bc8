// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "magi/plan.hpp"
#include "plan/check_pairs.hpp"
#include "plan/check_steps.hpp"
#include "plan/check_structure.hpp"

namespace magi {
namespace {

using namespace planner;

/// Arithmetic modulo 2^64: a broken plan may hold any numbers.
std::int64_t sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
std::int64_t sum(const std::vector<std::int64_t>& values) {
  std::int64_t total = 0;
  for (const std::int64_t value : values) total = sum(total, value);
  return total;
}
std::int64_t product(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

std::vector<std::int64_t> areas_of_ranks(const Plan& plan) {
  std::vector<std::int64_t> areas;
  for (const RankPlan& rank : plan.ranks) {
    std::uint64_t pairs = 0;
    for (const BandSlice& slice : rank.slices) pairs += static_cast<std::uint64_t>(area(slice));
    areas.push_back(static_cast<std::int64_t>(pairs));
  }
  return areas;
}

std::vector<std::int64_t> rows_received(const Plan& plan) {
  std::vector<std::int64_t> rows(plan.ranks.size(), 0);
  for (const Transfer& t : plan.transfers) {
    const bool is_received = t.space == Space::Keys && t.src != t.dst;
    if (is_received) rows[static_cast<std::size_t>(t.dst)] += t.num_rows;
  }
  return rows;
}

/// Bytes of a forward pass from rank to rank: keys and values there; queries there, results back.
std::vector<std::int64_t> bytes_of_pairs(const Plan& plan) {
  const PlanConfig& config = plan.config;
  const std::size_t num_ranks = plan.ranks.size();
  std::vector<std::int64_t> bytes(num_ranks * num_ranks, 0);
  const auto add = [&](std::int32_t from, std::int32_t to, std::int64_t count) {
    std::int64_t& total =
        bytes[static_cast<std::size_t>(from) * num_ranks + static_cast<std::size_t>(to)];
    total = sum(total, product(count, config.element_bytes));
  };
  for (const Transfer& t : plan.transfers) {
    if (t.src == t.dst) continue;
    if (t.space == Space::Keys) {
      add(t.src, t.dst,
          product(t.num_rows,
                  std::int64_t{config.num_heads_kv} * (config.head_dim_qk + config.head_dim_v)));
    } else {
      add(t.src, t.dst, product(t.num_rows, std::int64_t{config.num_heads_q} * config.head_dim_qk));
      add(t.dst, t.src, product(t.num_rows, std::int64_t{config.num_heads_q} * config.head_dim_v));
    }
  }
  return bytes;
}

void check_figures(const Plan& plan, Problems& problems) {
  const PlanReport& report = plan.report;
  const std::vector<std::int64_t> areas = areas_of_ranks(plan);
  if (areas != report.rank_area) problems.add("the report's areas are not those of the slices");
  const std::int64_t total = sum(areas);
  if (total != area(plan.mask)) {
    problems.add("ranks attend ", total, " pairs, the mask has ", area(plan.mask));
  }
  if (rows_received(plan) != report.remote_rows) {
    problems.add("the report's received rows are not those of the transfers");
  }
  const std::vector<std::int64_t> bytes = bytes_of_pairs(plan);
  if (bytes != report.pair_bytes) {
    problems.add("the report's bytes per pair are not those of the transfers");
  }
  const std::int64_t all_bytes = sum(bytes);
  if (report.total_bytes != all_bytes) {
    problems.add("the report counts ", report.total_bytes, " bytes, the transfers ", all_bytes);
  }
  // The bound is one of plans that move keys alone.
  const bool is_moving_queries = plan.ranks[0].q.segments.size() > 1;
  if ((report.lower_bound_bytes > all_bytes && !is_moving_queries) ||
      report.lower_bound_bytes < 0) {
    problems.add("the lower bound, ", report.lower_bound_bytes, " bytes, is above ", all_bytes,
                 " bytes that suffice");
  }
}

}  // namespace

std::vector<std::string> check_plan(const Plan& plan) {
  std::vector<std::string> broken = check_structure(plan);
  if (!broken.empty()) return broken;
  Problems problems;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) check_attend_slices(plan, r, problems);
  const RowMaps rows(plan);
  check_received(plan, rows, problems);
  check_pairs(plan, rows, problems);
  check_figures(plan, problems);
  if (plan_digest(plan) != plan.digest) problems.add("the digest is not that of the tables");
  return problems.take();
}

}  // namespace magi
