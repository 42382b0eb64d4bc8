// SPDX-License-Identifier: Apache-2.0
#include "batch/work.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "base/check.hpp"
#include "base/math.hpp"

namespace magi::batch {
namespace {

constexpr std::int32_t kMostRanks = 1 << 16;
constexpr std::int32_t kMostMicroBatches = 1 << 16;
constexpr double kMostSeconds = 4e6;  // of all ranks together: ticks stay below 2^62

void require_between(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    throw invalid(name, value, std::to_string(low) + " to " + std::to_string(high));
  }
}

void require_number(const char* name, double value, bool is_zero_allowed) {
  if (!std::isfinite(value) || value < 0.0 || (value == 0.0 && !is_zero_allowed)) {
    throw invalid(name, value, is_zero_allowed ? "finite and 0 or more" : "finite and above 0");
  }
}

void validate(const BatchConfig& config) {
  require_between("num_ranks", config.num_ranks, 1, kMostRanks);
  require_between("rows_per_rank", config.rows_per_rank, 1, kMaxRows);
  require_between("devices_per_node", config.devices_per_node, 0, kMostRanks);
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
  require_between((name + ": rows").c_str(), sample.rows, 0, kMaxRows);
  require_between((name + ": pairs").c_str(), sample.pairs, 0, std::int64_t{1} << 60);
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

constexpr Ticks kNever = std::numeric_limits<Ticks>::max();
/// Samples longer than this many limits are heavy.
constexpr Ticks kHeavy = 4;

/// Asks whether a batch fits into equal micro-batches of a given length, by conditions that every
/// plan meets.
class Bound {
 public:
  Bound(const BatchWork& batch, const BatchConfig& config, std::int32_t num_micro_batches)
      : batch_(batch),
        config_(config),
        num_slots_(std::int64_t{config.num_ranks} * num_micro_batches),
        dense_(batch.samples) {
    std::ranges::stable_sort(dense_, [](const Work& a, const Work& b) {
      return static_cast<double>(a.ticks) * b.rows > static_cast<double>(b.ticks) * a.rows;
    });
  }

  /// `has_memory`: whether memory may keep ranks from having enough work.
  bool is_possible(Ticks limit, bool has_memory) const {
    double ticks = static_cast<double>(batch_.total);
    std::int64_t heavy_ranks = 0;
    Ticks least_fetch = 0;  // of the heavy samples
    for (const Work& work : batch_.samples) {
      const std::int64_t ranks = least_ranks(work, limit);
      if (ranks > config_.num_ranks) return false;
      ticks += static_cast<double>(fetch(work)) * static_cast<double>(ranks - 1);
      if (work.ticks <= kHeavy * limit) continue;
      heavy_ranks += ranks;
      least_fetch = least_fetch == 0 ? fetch(work) : std::min(least_fetch, fetch(work));
    }
    const double room = static_cast<double>(limit) * static_cast<double>(num_slots_);
    if (ticks > room) return false;
    return !has_memory || heavy_ranks == 0 ||
           has_room_beside_heavy(limit, ticks, heavy_ranks, least_fetch);
  }

  Ticks least(bool has_memory) const {
    Ticks low = 0;
    Ticks high = batch_.total + batch_.row_fetch * batch_.total_rows * config_.num_ranks;
    while (low < high) {
      const Ticks middle = low + (high - low) / 2;
      if (is_possible(middle, has_memory)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

 private:
  Ticks fetch(const Work& work) const { return batch_.row_fetch * work.rows; }

  /// The fewest ranks on which a sample ends at `limit`: k ranks spend ticks + fetch * (k - 1).
  std::int64_t least_ranks(const Work& work, Ticks limit) const {
    const std::int64_t ranks = ceil_div<std::int64_t>(work.rows, config_.rows_per_rank);
    if (work.ticks <= limit) return ranks;
    if (fetch(work) >= limit) return kNever;
    return std::max(ranks, ceil_div(work.ticks - fetch(work), limit - fetch(work)));
  }

  /// Ranks that hold nothing of heavy samples have memory for so many rows of the others, which may
  /// not keep them busy; each further rank that holds some fetches the rest of a heavy sample.
  /// Whether `ticks`, with fetches of `heavy_ranks` alone, fit for some number of such ranks.
  bool has_room_beside_heavy(Ticks limit, double ticks, std::int64_t heavy_ranks,
                             Ticks least_fetch) const {
    auto next = dense_.begin();
    std::int64_t left = 0;  // rows of *next that are held already
    double others = 0.0;    // most ticks that the others' rows take on the ranks without heavy ones
    const auto limit_ticks = static_cast<double>(limit);
    for (std::int64_t without = 0; without < num_slots_; ++without) {
      const std::int64_t with = num_slots_ - without;
      const double more = static_cast<double>(std::max<std::int64_t>(with - heavy_ranks, 0)) *
                          static_cast<double>(least_fetch);
      const double room = limit_ticks * static_cast<double>(with) +
                          std::min(others, limit_ticks * static_cast<double>(without));
      if (ticks + more <= room) return true;
      for (std::int64_t rows = config_.rows_per_rank; rows > 0 && next != dense_.end();) {
        if (next->ticks > kHeavy * limit) {
          ++next;
          continue;
        }
        const std::int64_t taken = std::min<std::int64_t>(rows, next->rows - left);
        others += static_cast<double>(share_of(next->ticks, taken, next->rows));
        rows -= taken;
        left += taken;
        if (left == next->rows) {
          ++next;
          left = 0;
        }
      }
    }
    return false;
  }

  const BatchWork& batch_;
  const BatchConfig& config_;
  std::int64_t num_slots_;
  std::vector<Work> dense_;  ///< most ticks for a row first
};

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
  return Bound(work, config, num_micro_batches).least(true);
}

double step_bound(const BatchWork& work, const BatchConfig& config) {
  const auto seconds = [](Ticks ticks, std::int32_t count) {
    return static_cast<double>(ticks) * count / kTicksPerSecond;
  };
  std::int32_t count = config.num_micro_batches;
  if (count > 0) return seconds(bound_of(work, config, count), count);
  // More micro-batches have more memory; without that their bound only rises.
  double best = std::numeric_limits<double>::infinity();
  for (count = std::max(least_micro_batches(work, config), 1);; ++count) {
    const Bound bound(work, config, count);
    if (seconds(bound.least(false), count) >= best) return best;
    best = std::min(best, seconds(bound.least(true), count));
  }
}

}  // namespace magi::batch
