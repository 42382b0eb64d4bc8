// SPDX-License-Identifier: Apache-2.0
#include "batch/work.hpp"

#include <cmath>
#include <string>

#include "base/bounds.hpp"
#include "base/math.hpp"
#include "plan/value/config.hpp"

namespace magi::batch {
namespace {

constexpr std::int32_t kMostMicroBatches = 1 << 16;
constexpr double kMostSeconds = 4e6;  // of all ranks together: ticks stay below 2^62

void require_number(const char* name, double value, bool is_zero_allowed) {
  if (!std::isfinite(value) || value < 0.0 || (value == 0.0 && !is_zero_allowed)) {
    throw invalid(name, value, is_zero_allowed ? "finite and 0 or more" : "finite and above 0");
  }
}

void validate(const BatchConfig& config) {
  require_between("num_ranks", config.num_ranks, 1, planner::kMaxRanks);
  require_between("rows_per_rank", config.rows_per_rank, 1, kMaxRows);
  require_between("devices_per_node", config.devices_per_node, 0, planner::kMaxRanks);
  require_between("num_micro_batches", config.num_micro_batches, 0, kMostMicroBatches);
  require_between("chunk_size", config.chunk_size, 1, config.rows_per_rank);
  require_between("rows_per_rank of all ranks",
                  std::int64_t{config.rows_per_rank} * config.num_ranks, 1, kMaxRows);
  require_number("cost.flops_per_token", config.cost.flops_per_token, true);
  require_number("cost.flops_per_pair", config.cost.flops_per_pair, true);
  require_number("cost.bytes_per_token", config.cost.bytes_per_token, true);
  require_number("cost.flops_per_second", config.cost.flops_per_second, false);
  require_number("cost.bytes_per_second", config.cost.bytes_per_second, false);
  require_number("cost.network_bytes_per_second", config.cost.network_bytes_per_second, false);
}

void validate(const BatchSample& sample, std::size_t index, const BatchConfig& config) {
  const std::string name = "sample " + std::to_string(index);
  require_between(name + ": rows", sample.rows, 0, kMaxRows);
  require_between(name + ": pairs", sample.pairs, 0, std::int64_t{sample.rows} * sample.rows);
  const std::int64_t room = std::int64_t{chunks_per_rank(config)} * config.chunk_size;
  const std::int64_t padded = align_up<std::int64_t>(sample.rows, config.chunk_size);
  if (padded > room * config.num_ranks) {
    throw invalid(name + ": rows", sample.rows,
                  "up to " + std::to_string(room * config.num_ranks) + " on " +
                      std::to_string(config.num_ranks) + " ranks of " + std::to_string(room) +
                      " rows; it needs " + std::to_string(ceil_div(padded, room)) +
                      " ranks, or rows_per_rank " +
                      std::to_string(align_up<std::int64_t>(
                          ceil_div<std::int64_t>(padded, config.num_ranks), config.chunk_size)));
  }
}

/// Ticks of each row or pair at `rate`; the most that is asked for must stay within bounds.
double ticks_of(double amount, double rate) { return amount / rate * kTicksPerSecond; }

void require_bounded(double ticks) {
  if (!(ticks <= kMostSeconds * kTicksPerSecond)) {
    throw invalid("predicted seconds of the batch", ticks / kTicksPerSecond,
                  "up to 4 * 10^6; is a cost of the model per layer or per pass?");
  }
}

/// The fewest ranks on which a sample ends at `limit`, as k ranks spend ticks + fetch * (k - 1);
/// more than any config has where none does.
std::int64_t least_ranks(const Work& work, Ticks fetch, Ticks limit, const BatchConfig& config) {
  const std::int64_t ranks = ceil_div<std::int64_t>(work.rows, config.rows_per_rank);
  if (work.ticks <= limit) return ranks;
  if (fetch >= limit) return planner::kMaxRanks + 1;
  return std::max(ranks, ceil_div(work.ticks - fetch, limit - fetch));
}

/// Whether a batch may fit into `num_slots` ranks of micro-batches of this length.
bool is_possible(const BatchWork& batch, const BatchConfig& config, Ticks limit, double num_slots) {
  auto ticks = static_cast<double>(batch.total);
  for (const Work& work : batch.samples) {
    const Ticks fetch = batch.row_fetch * work.rows;
    const std::int64_t ranks = least_ranks(work, fetch, limit, config);
    if (ranks > config.num_ranks) return false;
    ticks += static_cast<double>(fetch) * static_cast<double>(ranks - 1);
  }
  return ticks <= static_cast<double>(limit) * num_slots;
}

}  // namespace

BatchWork work_of(std::span<const BatchSample> samples, const BatchConfig& config) {
  validate(config);
  const BatchCost& cost = config.cost;
  const double token = ticks_of(cost.flops_per_token, cost.flops_per_second);
  const double pair = ticks_of(cost.flops_per_pair, cost.flops_per_second);
  const double fetch = ticks_of(cost.bytes_per_token, cost.bytes_per_second);
  const double cross = ticks_of(cost.bytes_per_token, cost.network_bytes_per_second);
  BatchWork batch;
  double sum = 0.0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const BatchSample& sample = samples[i];
    validate(sample, i, config);
    if (sample.rows == 0) continue;
    const double ticks = token * sample.rows + pair * static_cast<double>(sample.pairs);
    sum += ticks + (fetch * config.num_ranks + cross) * sample.rows;
    require_bounded(sum);
    batch.samples.push_back(
        {static_cast<std::int32_t>(i), sample.rows, static_cast<Ticks>(std::llround(ticks))});
    batch.total += batch.samples.back().ticks;
    batch.total_rows += sample.rows;
  }
  // Without samples too, so that any rate gives whole numbers.
  require_bounded(std::max(fetch, cross));
  batch.row_fetch = std::llround(fetch);
  batch.row_cross = std::llround(cross);
  std::ranges::sort(batch.samples, [](const Work& a, const Work& b) {
    return a.ticks != b.ticks ? a.ticks > b.ticks : a.sample < b.sample;
  });
  return batch;
}

std::int32_t least_micro_batches(const BatchWork& work, const BatchConfig& config) {
  const std::int64_t rows = std::int64_t{config.rows_per_rank} * config.num_ranks;
  return static_cast<std::int32_t>(ceil_div(work.total_rows, rows));
}

Ticks bound_of(const BatchWork& work, const BatchConfig& config, std::int32_t num_micro_batches) {
  const double num_slots = static_cast<double>(config.num_ranks) * num_micro_batches;
  Ticks low = 0;
  Ticks high = work.total + work.row_fetch * work.total_rows * config.num_ranks;
  while (low < high) {
    const Ticks middle = low + (high - low) / 2;
    if (is_possible(work, config, middle, num_slots)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

double step_bound(const BatchWork& work, const BatchConfig& config) {
  const std::int32_t asked = config.num_micro_batches;
  const std::int32_t count = asked > 0 ? asked : std::max(least_micro_batches(work, config), 1);
  return static_cast<double>(bound_of(work, config, count)) * count / kTicksPerSecond;
}

}  // namespace magi::batch
