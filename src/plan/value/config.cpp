// SPDX-License-Identifier: Apache-2.0
#include "plan/value/config.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "base/bounds.hpp"

namespace magi::planner {
namespace {

/// Far above any machine, and still exact: sums over all ranks of all rows that travel, with their
/// float32 gradients, fit in int64.
constexpr double kMaxTotalBytes = 0x1p60;

}  // namespace

void validate_sizes(const Mask& mask, const PlanConfig& config) {
  validate(mask);
  require_between("mask.rows_q", mask.rows_q, 1, kMaxRows);
  require_between("mask.rows_k", mask.rows_k, 1, kMaxRows);
  static_cast<void>(area(mask));
  if (config.max_runs && mask.rows_q != mask.rows_k) {
    throw invalid("max_runs", *config.max_runs,
                  "none where keys are no rows of the queries' sequence, as there are " +
                      std::to_string(mask.rows_q) + " queries and " + std::to_string(mask.rows_k) +
                      " keys");
  }
  const auto require_room = [&](const char* name, std::int32_t num_heads, std::int32_t rows) {
    const double elements = static_cast<double>(num_heads) *
                            (config.head_dim_qk + config.head_dim_v) * rows * config.num_ranks;
    const double bytes = elements * config.element_bytes;
    if (bytes > kMaxTotalBytes) throw invalid(name, bytes, "at most 2^60");
  };
  require_room("bytes of all keys and values on every rank", config.num_heads_kv, mask.rows_k);
  require_room("bytes of all queries and results on every rank", config.num_heads_q, mask.rows_q);
}

bool asks_for_runs(const PlanConfig& config) {
  return config.max_runs.has_value() || config.cost.seconds_per_run > 0.0;
}

std::vector<std::int32_t> possible_shares(const PlanConfig& config) {
  const std::int32_t most = std::gcd(config.num_ranks, config.num_heads_kv);
  std::vector<std::int32_t> shares;
  for (std::int32_t count = 2; count <= most; ++count) {
    const bool is_asked_for = config.head_shares == 0 || config.head_shares == count;
    if (most % count == 0 && is_asked_for) shares.push_back(count);
  }
  return shares;
}

std::int64_t bytes_above_bound(const PlanConfig& config, std::int64_t exchange_bytes) {
  const std::int64_t bound = config.max_exchange_bytes.value_or(kDefaultExchangeBytes);
  return bound == 0 ? 0 : std::max<std::int64_t>(exchange_bytes - bound, 0);
}

void validate_config(const PlanConfig& config) {
  require_between("num_ranks", config.num_ranks, 1, kMaxRanks);
  require_between("num_heads_q", config.num_heads_q, 1, kMaxHeads);
  require_between("num_heads_kv", config.num_heads_kv, 1, kMaxHeads);
  if (config.num_heads_q % config.num_heads_kv != 0) {
    throw invalid("num_heads_q", config.num_heads_q,
                  "multiples of num_heads_kv, " + std::to_string(config.num_heads_kv));
  }
  require_between("head_dim_qk", config.head_dim_qk, 1, kMaxHeadDim);
  require_between("head_dim_v", config.head_dim_v, 1, kMaxHeadDim);
  require_between("element_bytes", config.element_bytes, 1, 8);
  if (config.overlap_degree) {
    require_between("overlap_degree", *config.overlap_degree, 0, kMaxDegree);
  }
  require_between("stage_mode", static_cast<std::int32_t>(config.stage_mode), 0, 2);
  require_between("work", static_cast<std::int32_t>(config.work), 0, 3);
  require_between("head_shares", config.head_shares, 0, kMaxHeads);
  if (config.head_shares > 0 &&
      (config.work != WorkMode::Heads || config.num_ranks % config.head_shares != 0 ||
       config.num_heads_kv % config.head_shares != 0)) {
    throw invalid("head_shares", config.head_shares,
                  "0, or with work heads common divisors of num_ranks, " +
                      std::to_string(config.num_ranks) + ", and num_heads_kv, " +
                      std::to_string(config.num_heads_kv));
  }
  const bool is_moving_queries =
      config.work == WorkMode::Queries ||
      (config.work == WorkMode::Heads && possible_shares(config).empty());
  if (is_moving_queries && config.num_ranks > kMostRanksMovingQueries) {
    throw invalid("num_ranks", config.num_ranks,
                  "up to " + std::to_string(kMostRanksMovingQueries) +
                      " with work queries, or heads in one share");
  }
  require_between("min_stage_rows", config.min_stage_rows, 1, kMaxRows);
  require_between("devices_per_node", config.devices_per_node, 0, kMaxRanks);
  if (config.max_runs) require_between("max_runs", *config.max_runs, 1, kMaxRows);
  if (config.max_exchange_bytes.value_or(0) < 0) {
    throw invalid("max_exchange_bytes", *config.max_exchange_bytes, "0 (no bound) or more");
  }
  validate(config.cost);
}

}  // namespace magi::planner

namespace magi {
namespace {

constexpr std::array<const char*, 4> kWorkNames = {"keys", "queries", "auto", "heads"};

}  // namespace

const char* work_name(WorkMode work) {
  require_between("work", static_cast<std::int32_t>(work), 0, kWorkNames.size() - 1);
  return kWorkNames[static_cast<std::size_t>(work)];
}

WorkMode work_from_name(std::string_view name) {
  const auto found = std::ranges::find(kWorkNames, name);
  if (found == kWorkNames.end()) throw invalid("work", name, "keys, queries, heads or auto");
  return static_cast<WorkMode>(found - kWorkNames.begin());
}

}  // namespace magi
