// SPDX-License-Identifier: Apache-2.0
#include "simulate/sweep.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "common/masks.hpp"

namespace magi::cli {
namespace {

/// Copies of a mask one behind the other.
Mask repeated(const Mask& mask, std::int32_t count) {
  Mask all{mask.rows_q * count, mask.rows_k * count, {}};
  for (std::int32_t copy = 0; copy < count; ++copy) {
    for (const BandSlice& slice : mask.slices) {
      all.slices.push_back(shift(slice, copy * mask.rows_q, copy * mask.rows_k));
    }
  }
  return all;
}

bool has_documents(const std::string& name) { return name.starts_with("varlen"); }

/// Rows of one strategy of the library on one number of ranks: `row`, with what differs.
void add_plans(const SweepOptions& options, const std::string& strategy, simulate::Problem problem,
               SweepRow row, std::vector<SweepRow>& rows) {
  PlanConfig& config = problem.config;
  for (const auto& chunk : options.chunks) {
    for (const auto& degree : options.degrees) {
      for (const auto& bound : options.bounds) {
        config.placement.chunk_size = row.chunk = chunk;
        config.overlap_degree = row.degree = degree;
        config.max_exchange_bytes = row.bound = bound;
        row.figures = simulate::simulate(problem, strategy);
        rows.push_back(row);
      }
    }
  }
}

/// Rows of one number of ranks.
void add_rows(const SweepOptions& options, const Mask& mask, std::int32_t ranks,
              const std::function<void()>& advance, std::vector<SweepRow>& rows) {
  const std::vector<std::string> baselines = simulate::baseline_strategies();
  simulate::Problem problem{.mask = mask,
                            .config = options.config,
                            .cluster = options.cluster,
                            .ulysses_degree = options.ulysses_degree,
                            .latents = options.latents};
  problem.config.num_ranks = ranks;
  for (const std::string& strategy : options.strategies) {
    SweepRow row{.ranks = ranks,
                 .is_baseline = std::ranges::find(baselines, strategy) != baselines.end(),
                 .num_rows = mask.rows_q};
    if (row.is_baseline) {
      row.figures = simulate::simulate(problem, strategy);
      rows.push_back(std::move(row));
    } else {
      add_plans(options, strategy, problem, row, rows);
    }
    advance();
  }
}

}  // namespace

std::vector<SweepRow> run_sweep(const SweepOptions& options,
                                const std::function<Mask(std::int32_t)>& mask_for,
                                const std::function<void()>& advance) {
  std::vector<SweepRow> rows;
  for (const std::int32_t ranks : options.ranks) {
    add_rows(options, mask_for(ranks), ranks, advance, rows);
  }
  return rows;
}

Mask growing_mask(const std::string& name, std::int64_t rows) {
  if (rows > kMaxRows) throw invalid("rows of the mask", rows, "1 to " + std::to_string(kMaxRows));
  const auto count = static_cast<std::int32_t>(rows);
  const std::int32_t longest = bench_lengths().back();
  if (!has_documents(name) || count <= longest) return dist_mask(name, count);
  if (count % longest != 0) {
    throw invalid("rows of the mask", rows, "multiples of " + std::to_string(longest));
  }
  return repeated(dist_mask(name, longest), count / longest);
}

}  // namespace magi::cli
