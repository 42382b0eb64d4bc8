// SPDX-License-Identifier: Apache-2.0
#include "plan/cost.hpp"

#include <algorithm>
#include <cmath>

namespace magi::planner {
namespace {

constexpr std::int32_t kMaxChosenDegree = 8;

/// Two weeks: no step takes longer, and sums over all waves stay far inside int64.
constexpr double kMostNs = 0x1p50;

/// amount / rate in nanoseconds. No sum of products, so that fused multiply-add cannot change it.
std::int64_t to_ns(double amount, double rate) {
  return std::llround(std::min(amount / rate * 1e9, kMostNs));
}

/// A share `part` of `whole` waves or heads of a segment's load.
struct Share {
  const SegmentLoad* load;
  std::int32_t part = 1;
  std::int32_t whole = 1;

  double of(std::int64_t amount) const {
    return static_cast<double>(amount) * part / static_cast<double>(whole);
  }
};

struct StepRates {
  double flops_per_pair;  ///< all query heads
  double flops_per_second;
};

StepRates forward_rates(const PlanConfig& config) {
  return {2.0 * config.num_heads_q * (config.head_dim_qk + config.head_dim_v),
          config.cost.flops_per_second};
}

/// Five products: S and dQ, dK over head_dim_qk; dP and dV over head_dim_v.
StepRates backward_rates(const PlanConfig& config) {
  return {2.0 * config.num_heads_q * (3 * config.head_dim_qk + 2 * config.head_dim_v),
          config.cost.backward_flops_per_second};
}

std::int64_t compute_ns(const Share& share, const StepRates& rates, const CostModel& cost) {
  if (share.load->area == 0) return 0;
  return to_ns(share.of(share.load->area) * rates.flops_per_pair, rates.flops_per_second) +
         to_ns(cost.seconds_per_launch, 1.0);
}

std::int64_t transfer_ns(const Share& share, const PlanConfig& config) {
  const std::int64_t rows = std::max(share.load->rows_in, share.load->rows_out);
  const std::int32_t peers = std::max(share.load->peers_in, share.load->peers_out);
  return to_ns(share.of(rows * bytes_per_row(config)), config.cost.bytes_per_second) +
         to_ns(config.cost.seconds_per_transfer * peers, 1.0);
}

struct Timeline {
  std::int64_t end = 0;
  std::int64_t computing = 0;
  std::int64_t transfers_end = 0;
  std::int64_t last_transfer = 0;

  void add(const Share& share, bool is_awaiting, const StepRates& rates, const PlanConfig& config) {
    if (is_awaiting) {
      last_transfer = transfer_ns(share, config);
      transfers_end += last_transfer;
      if (share.load->rows_in > 0) end = std::max(end, transfers_end);
    }
    const std::int64_t computed = compute_ns(share, rates, config.cost);
    end += computed;
    computing += computed;
  }
};

Timeline rank_timeline(const Work& work, std::int32_t rank, const WaveShape& shape,
                       const StepRates& rates, const PlanConfig& config) {
  Timeline timeline;
  if (shape.is_combined) {
    // Of the two segments one is read; a rank without received rows reads its own in place.
    timeline.add({&work.load(rank, 1)}, true, rates, config);
    timeline.add({&work.load(rank, 0)}, false, rates, config);
    return timeline;
  }
  timeline.add({&work.load(rank, 0)}, false, rates, config);
  for (std::int32_t wave = 0; wave < shape.num_remote; ++wave) {
    if (shape.mode == WaveMode::Heads) {
      const Range heads = wave_rows(config.num_heads_kv, shape.num_remote, wave);
      timeline.add({&work.load(rank, 1), heads.size(), config.num_heads_kv}, true, rates, config);
    } else {
      timeline.add({&work.load(rank, wave + 1)}, true, rates, config);
    }
  }
  return timeline;
}

}  // namespace

std::int64_t bytes_per_row(const PlanConfig& config) {
  return std::int64_t{config.num_heads_kv} * (config.head_dim_qk + config.head_dim_v) *
         config.element_bytes;
}

PredictedTime predict_time(const Work& work, std::size_t num_ranks, const WaveShape& shape,
                           const PlanConfig& config) {
  const StepRates forward = forward_rates(config);
  const StepRates backward = backward_rates(config);
  PredictedTime time;
  std::int64_t busiest = 0;
  for (std::size_t r = 0; r < num_ranks; ++r) {
    const auto rank = static_cast<std::int32_t>(r);
    const Timeline there = rank_timeline(work, rank, shape, forward, config);
    const Timeline back = rank_timeline(work, rank, shape, backward, config);
    time.forward_ns = std::max(time.forward_ns, there.end);
    busiest = std::max(busiest, there.computing);
    const std::int64_t returned = std::max(back.end, back.transfers_end * 2 - back.last_transfer);
    time.backward_ns = std::max(time.backward_ns, returned + back.last_transfer);
  }
  time.exposed_ns = time.forward_ns - busiest;
  return time;
}

std::int32_t choose_degree(const Work& single, const Needs& needs, const PlanConfig& config) {
  if (single.num_segments < 2) return 1;
  const StepRates rates = forward_rates(config);
  std::int32_t best = 1;
  std::int64_t best_ns = 0;
  for (std::int32_t degree = 1; degree <= kMaxChosenDegree; ++degree) {
    std::int64_t slowest = 0;
    for (std::size_t r = 0; r < single.ranks.size(); ++r) {
      const auto rank = static_cast<std::int32_t>(r);
      Timeline timeline;
      timeline.add({&single.load(rank, 0)}, false, rates, config);
      const std::int32_t waves = useful_waves(config, degree, needs.remote_rows[r]);
      for (std::int32_t wave = 0; wave < waves; ++wave) {
        timeline.add({&single.load(rank, 1), 1, waves}, true, rates, config);
      }
      slowest = std::max(slowest, timeline.end);
    }
    if (degree == 1 || slowest < best_ns) {
      best = degree;
      best_ns = slowest;
    }
  }
  return best;
}

}  // namespace magi::planner
