// SPDX-License-Identifier: Apache-2.0
#include "plan/check_figures.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/check_hops.hpp"
#include "plan/check_returns.hpp"
#include "plan/check_times.hpp"

namespace magi::planner {
namespace {

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

/// Received rows with their gradients, float32 unless they are whole; of queries also out, its
/// gradient, lse and delta.
std::int64_t memory_of(const PlanConfig& config, const ReturnsOnce& once, const RankPlan& rank) {
  const std::int32_t of_key = once.keys ? config.element_bytes : 4;
  const std::int32_t of_query = once.queries ? config.element_bytes : 4;
  const std::int64_t key_elements =
      product(config.num_heads_kv, std::int64_t{config.head_dim_qk} + config.head_dim_v);
  const std::int64_t query_head = std::int64_t{config.element_bytes} * config.head_dim_qk +
                                  2 * std::int64_t{config.element_bytes} * config.head_dim_v +
                                  of_query * std::int64_t{config.head_dim_qk} + 8;
  std::int64_t bytes = 0;
  for (const Segment& segment : std::span(rank.k.segments).subspan(1)) {
    bytes =
        sum(bytes, product(product(segment.num_rows, key_elements), config.element_bytes + of_key));
  }
  for (const Segment& segment : std::span(rank.q.segments).subspan(1)) {
    bytes = sum(bytes, product(product(segment.num_rows, config.num_heads_q), query_head));
  }
  return bytes;
}

/// Bytes of a forward pass from rank to rank: keys and values there; queries there, results back.
std::vector<std::int64_t> bytes_of_pairs(const Plan& plan, const std::vector<SentRows>& all_sent) {
  const PlanConfig& config = plan.config;
  const std::size_t num_ranks = plan.ranks.size();
  std::vector<std::int64_t> bytes(num_ranks * num_ranks, 0);
  const auto add = [&](std::int32_t from, std::int32_t to, std::int64_t count) {
    std::int64_t& total =
        bytes[static_cast<std::size_t>(from) * num_ranks + static_cast<std::size_t>(to)];
    total = sum(total, product(count, config.element_bytes));
  };
  for (const SentRows& sent : all_sent) {
    if (sent.space == Space::Keys) {
      add(sent.from, sent.to,
          product(sent.num_rows,
                  std::int64_t{config.num_heads_kv} * (config.head_dim_qk + config.head_dim_v)));
    } else {
      add(sent.from, sent.to,
          product(sent.num_rows, std::int64_t{config.num_heads_q} * config.head_dim_qk));
      add(sent.to, sent.from,
          product(sent.num_rows, std::int64_t{config.num_heads_q} * config.head_dim_v));
    }
  }
  return bytes;
}

void check_balance(const std::vector<std::int64_t>& areas, double reported, Problems& problems) {
  const auto total = static_cast<double>(sum(areas));
  const auto most = static_cast<double>(*std::ranges::max_element(areas));
  const double balance = total == 0.0 ? 1.0 : most * static_cast<double>(areas.size()) / total;
  constexpr double kRounding = 1e-12;  // of two products and a quotient
  if (!(std::abs(reported - balance) <= kRounding * balance)) {
    problems.add("the report's balance is ", reported, ", that of the slices ", balance);
  }
}

void check_rank_figures(const Plan& plan, const ReturnsOnce& once,
                        const std::vector<std::int64_t>& areas, Problems& problems) {
  const PlanReport& report = plan.report;
  const std::vector<std::int64_t> received = rows_received(plan);
  const auto compare = [&](std::size_t rank, std::int64_t counted, std::int64_t reported,
                           const char* what) {
    if (counted == reported) return;
    problems.add("rank ", rank, ": the report says ", reported, " ", what, ", the tables have ",
                 counted);
  };
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    compare(r, areas[r], report.rank_area[r], "pairs");
    compare(r, plan.ranks[r].q.segments[0].num_rows, report.rank_rows[r], "own query rows");
    compare(r, received[r], report.remote_rows[r], "received key rows");
    compare(r, memory_of(plan.config, once, plan.ranks[r]), report.rank_memory[r],
            "bytes of memory");
  }
}

void check_bytes(const Plan& plan, const std::vector<SentRows>& sent, Problems& problems) {
  const PlanReport& report = plan.report;
  const PlanConfig& config = plan.config;
  const std::size_t num_ranks = plan.ranks.size();
  const std::vector<std::int64_t> bytes = bytes_of_pairs(plan, sent);
  const auto [counted, reported] = std::ranges::mismatch(bytes, report.pair_bytes);
  if (counted != bytes.end()) {
    const auto pair = static_cast<std::size_t>(counted - bytes.begin());
    problems.add("rank ", pair / num_ranks, " sends ", *counted, " bytes to rank ",
                 pair % num_ranks, ", the report says ", *reported);
  }
  const std::int64_t all_bytes = sum(bytes);
  if (report.total_bytes != all_bytes) {
    problems.add("the report counts ", report.total_bytes, " bytes, the transfers ", all_bytes);
  }
  const std::int64_t row_bytes =
      product(config.num_heads_kv,
              std::int64_t{config.head_dim_qk + config.head_dim_v} * config.element_bytes);
  const std::int64_t ring_rows =
      product(static_cast<std::int64_t>(num_ranks) - 1, plan.mask.rows_k);
  if (report.ring_bytes != product(ring_rows, row_bytes)) {
    problems.add("the report counts ", report.ring_bytes, " bytes of a ring, which moves ",
                 product(ring_rows, row_bytes));
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

void check_figures(const Plan& plan, std::int32_t num_shares, Problems& problems) {
  const ReturnsOnce once = num_shares > 1 ? returns_once(plan) : ReturnsOnce{};
  const std::vector<std::int64_t> areas = areas_of_ranks(plan);
  const std::int64_t total = sum(areas);
  if (total != area(plan.mask)) {
    problems.add("ranks attend ", total, " pairs, the mask has ", area(plan.mask));
  }
  check_rank_figures(plan, once, areas, problems);
  check_balance(areas, plan.report.balance, problems);
  const std::vector<SentRows> sent = sent_rows(plan);
  check_bytes(plan, sent, problems);
  check_times(plan, sent, once, problems);
}

}  // namespace magi::planner
