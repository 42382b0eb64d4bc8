// SPDX-License-Identifier: Apache-2.0
#include "bounds/bounds.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include "base/check.hpp"
#include "bounds/price_search.hpp"
#include "bounds/priced_chunks.hpp"
#include "plan/cost/bound.hpp"
#include "plan/cost/loads.hpp"
#include "plan/placement/classic.hpp"
#include "plan/tables/layout.hpp"
#include "plan/tables/needs.hpp"

namespace magi::cli {
namespace {

/// Chunks of a plan's queries, with a copy of what its bounds are counted from.
struct Setting {
  explicit Setting(const Plan& of)
      : plan(of),
        is_shared(of.placement_q == of.placement_k),
        table(make_chunk_table(of.mask, of.placement_q.num_rows, of.placement_q.chunk_size)),
        chunks(make_priced_chunks(table, of.placement_q)) {}

  const Plan& plan;
  bool is_shared;
  ChunkTable table;
  PricedChunks chunks;
};

std::int64_t received_rows(const Mask& mask, const Placement& placement_q,
                           const Placement& placement_k) {
  const planner::Needs needs = planner::find_needs(mask, planner::make_layout(placement_q),
                                                   planner::make_layout(placement_k));
  return std::accumulate(needs.remote_rows.begin(), needs.remote_rows.end(), std::int64_t{0});
}

/// Every rank holds one run of chunks, in the order of the ranks.
Placement contiguous(const Mask& mask, const Placement& placement) {
  const ChunkTable table = make_chunk_table(mask, placement.num_rows, placement.chunk_size);
  const PlacementLimits limits = placement_limits(placement.num_chunks(), placement.num_ranks, 0.0);
  return placement_from_chunks(placement.num_rows, placement.chunk_size, placement.num_ranks,
                               place_sequential(table, limits));
}

std::int64_t contiguous_rows(const Setting& setting) {
  const Plan& plan = setting.plan;
  const Placement runs_q = contiguous(plan.mask, plan.placement_q);
  if (setting.is_shared) return received_rows(plan.mask, runs_q, runs_q);
  // Chunks of keys are other chunks: the mask's queries have no areas among them.
  const ChunkTable keys{.num_rows = plan.placement_k.num_rows,
                        .chunk_size = plan.placement_k.chunk_size,
                        .area = std::vector<std::int64_t>(plan.placement_k.chunk_rank.size(), 0)};
  const PlacementLimits limits =
      placement_limits(plan.placement_k.num_chunks(), plan.placement_k.num_ranks, 0.0);
  const Placement runs_k = placement_from_chunks(
      keys.num_rows, keys.chunk_size, plan.placement_k.num_ranks, place_sequential(keys, limits));
  return received_rows(plan.mask, runs_q, runs_k);
}

/// Rows that need no prices to be proven.
std::int64_t counted_rows(const Setting& setting) {
  const Placement& placement = setting.plan.placement_q;
  std::int64_t most_rows = 0;
  for (std::int32_t r = 0; r < placement.num_ranks; ++r) {
    most_rows = std::max<std::int64_t>(most_rows, placement.rows_of(r));
  }
  return planner::lower_bound_rows(setting.plan.mask, {.num_ranks = placement.num_ranks,
                                                       .max_rows = most_rows,
                                                       .max_area = setting.chunks.max_area,
                                                       .is_shared = setting.is_shared});
}

/// The least balance, by what some rank must hold: k + 1 of the k * P + 1 largest chunks, and
/// beside the largest one min_chunks - 1 others at least.
double least_balance(const PricedChunks& chunks) {
  std::vector<std::int64_t> area = chunks.area;
  std::ranges::sort(area, std::greater<>());
  std::vector<std::int64_t> sums(area.size() + 1);  // of the largest chunks
  std::partial_sum(area.begin(), area.end(), sums.begin() + 1);
  const std::int64_t total = sums.back();
  if (total == 0) return 1.0;
  const auto num_ranks = static_cast<std::size_t>(chunks.num_ranks);
  std::int64_t most = area.front();
  for (std::int32_t i = 0; i + 1 < chunks.min_chunks; ++i) {
    most += area[area.size() - 1 - static_cast<std::size_t>(i)];
  }
  for (std::size_t k = 1; k * num_ranks < area.size(); ++k) {
    most = std::max(most, sums[k * num_ranks + 1] - sums[k * num_ranks - k]);
  }
  const double mean = static_cast<double>(total) / static_cast<double>(chunks.num_ranks);
  return std::max(1.0, static_cast<double>(most) / mean);
}

/// Some rank attends to the mean area and receives the mean of the rows, at the plan's rates. With
/// nodes rows come over both kinds of links at once, at most at the sum of the rates.
double least_seconds(const Setting& setting, std::int64_t rows, bool is_backward) {
  const PlanConfig& config = setting.plan.config;
  const auto num_ranks = static_cast<double>(setting.chunks.num_ranks);
  const Range heads{0, config.num_heads_kv};
  std::int64_t row_bytes =
      planner::bytes_per_row(config, {.role = Role::KeysValues, .heads = heads}, is_backward);
  if (is_backward) {
    row_bytes += planner::bytes_per_row(config, {.role = Role::KeyGradients, .heads = heads}, true);
  }
  const std::int32_t dims = is_backward ? 3 * config.head_dim_qk + 2 * config.head_dim_v
                                        : config.head_dim_qk + config.head_dim_v;
  const double rate =
      is_backward ? config.cost.backward_flops_per_second : config.cost.flops_per_second;
  const double attending = static_cast<double>(setting.table.total_area()) / num_ranks * 2.0 *
                           config.num_heads_q * dims / rate;
  const double network = has_nodes(config) ? config.cost.network_bytes_per_second : 0.0;
  const double moving = static_cast<double>(rows) / num_ranks * static_cast<double>(row_bytes) /
                        (config.cost.bytes_per_second + network);
  return std::max(attending, moving);
}

/// The bounds that a proof gives.
PlanBounds count_bounds(const Setting& setting, const PriceProof& proof) {
  const Plan& plan = setting.plan;
  const std::int64_t row_bytes = planner::bytes_per_row(plan.config);
  PlanBounds bounds;
  bounds.rows = std::max(counted_rows(setting), proven_rows(setting.chunks, proof));
  bounds.bytes = bounds.rows * row_bytes;
  bounds.contiguous_bytes = contiguous_rows(setting) * row_bytes;
  bounds.layout_bytes = received_rows(plan.mask, plan.placement_q, plan.placement_k) * row_bytes;
  bounds.balance = least_balance(setting.chunks);
  bounds.forward_seconds = least_seconds(setting, bounds.rows, false);
  bounds.backward_seconds = least_seconds(setting, bounds.rows, true);
  return bounds;
}

}  // namespace

PlanBounds find_bounds(const Plan& plan, const BoundSearch& search) {
  if (search.work < 0) throw invalid("work", search.work, "0 or more");
  const Setting setting(plan);
  PriceProof proof;
  if (setting.is_shared) {
    const std::int64_t known = received_rows(plan.mask, plan.placement_q, plan.placement_k);
    proof = search_prices(setting.chunks, plan.placement_q, known, search.work);
  }
  return count_bounds(setting, proof);
}

}  // namespace magi::cli
