// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstdint>

#include "base/mix.hpp"
#include "magi/plan.hpp"

namespace magi {
namespace {

/// Order-dependent 64-bit mix of integers: the state is multiplied by an odd constant per word and
/// folded at the end. Arithmetic is modulo 2^64 only, so the value is the same on every platform.
class Digest {
 public:
  void add(std::uint64_t word) { state_ = (std::rotl(state_, 29) ^ word) * kGoldenRatio; }
  void add(std::int32_t a, std::int32_t b) {
    add((std::uint64_t{static_cast<std::uint32_t>(a)} << 32) | static_cast<std::uint32_t>(b));
  }
  void add_size(std::size_t size) { add(std::uint64_t{size}); }

  std::uint64_t value() const { return finish(state_); }

 private:
  std::uint64_t state_ = 0x6d61676900000003u;  // "magi", version 3
};

void add_slices(Digest& digest, const std::vector<BandSlice>& slices) {
  digest.add_size(slices.size());
  for (const BandSlice& s : slices) {
    digest.add(s.q0, s.q1);
    digest.add(s.k0, s.k1);
    digest.add(s.d_min, s.d_max);
  }
}

/// The integers that shape work and bytes, and the cost model: it chooses stages here and spin
/// budget in the kernels. Placement options only lead to the tables that follow.
void add_config(Digest& digest, const PlanConfig& config) {
  digest.add(config.num_ranks, config.element_bytes);
  digest.add(config.num_heads_q, config.num_heads_kv);
  digest.add(config.head_dim_qk, config.head_dim_v);
  digest.add(config.overlap_degree.value_or(-1), static_cast<std::int32_t>(config.stage_mode));
  digest.add(config.min_stage_rows,
             (config.placement_k ? 1 : 0) + 2 * static_cast<std::int32_t>(config.work));
  const CostModel& cost = config.cost;
  for (const double constant :
       {cost.flops_per_second, cost.backward_flops_per_second, cost.bytes_per_second,
        cost.memory_bytes_per_second, cost.seconds_per_transfer, cost.seconds_per_launch}) {
    digest.add(std::bit_cast<std::uint64_t>(constant + 0.0));  // equal zeros have equal bits
  }
  if (cost.seconds_per_run != 0.0) digest.add(std::bit_cast<std::uint64_t>(cost.seconds_per_run));
  if (config.devices_per_node == 0) return;
  digest.add(config.devices_per_node, 0);
  for (const double constant : {cost.network_bytes_per_second, cost.network_seconds_per_transfer}) {
    digest.add(std::bit_cast<std::uint64_t>(constant + 0.0));
  }
}

void add_placement(Digest& digest, const Placement& placement) {
  digest.add(placement.num_rows, placement.chunk_size);
  digest.add(placement.num_ranks, placement.num_chunks());
  for (const std::int32_t rank : placement.chunk_rank) {
    digest.add(std::uint64_t{static_cast<std::uint32_t>(rank)});
  }
}

void add_space(Digest& digest, const TokenSpace& space) {
  digest.add_size(space.segments.size());
  for (const Segment& segment : space.segments) digest.add(segment.owner, segment.num_rows);
}

void add_exchange(Digest& digest, const Exchange& exchange) {
  digest.add(static_cast<std::int32_t>(exchange.role), exchange.segment);
  digest.add(exchange.heads.begin, exchange.heads.end);
  digest.add(exchange.hop, exchange.stage);
}

void add_attend(Digest& digest, const Attend& attend) {
  digest.add(attend.q_segment, attend.k_segment);
  digest.add(attend.heads.begin, attend.heads.end);
  digest.add(attend.slices.begin, attend.slices.end);
  digest.add(attend.is_merging ? 1 : 0, 0);
}

void add_steps(Digest& digest, const std::vector<Step>& steps) {
  digest.add_size(steps.size());
  for (const Step& step : steps) {
    digest.add(static_cast<std::int32_t>(step.kind), step.index);
    digest.add(step.after[0], step.after[1]);
  }
}

void add_rank(Digest& digest, const RankPlan& rank) {
  add_space(digest, rank.q);
  add_space(digest, rank.k);
  add_slices(digest, rank.slices);
  digest.add_size(rank.attends.size());
  for (const Attend& attend : rank.attends) add_attend(digest, attend);
  add_steps(digest, rank.forward);
  add_steps(digest, rank.backward);
}

}  // namespace

std::uint64_t placement_digest(const Placement& placement) {
  Digest digest;
  add_placement(digest, placement);
  return digest.value();
}

std::uint64_t plan_digest(const Plan& plan) {
  Digest digest;
  digest.add(plan.mask.rows_q, plan.mask.rows_k);
  add_slices(digest, plan.mask.slices);
  add_config(digest, plan.config);
  add_placement(digest, plan.placement_q);
  add_placement(digest, plan.placement_k);
  if (plan.num_head_shares != 1) digest.add(plan.num_head_shares, 0);
  if (plan.stages_in_flight != 0) digest.add(0, plan.stages_in_flight);
  digest.add_size(plan.exchanges.size());
  for (const Exchange& exchange : plan.exchanges) add_exchange(digest, exchange);
  digest.add_size(plan.ranks.size());
  for (const RankPlan& rank : plan.ranks) add_rank(digest, rank);
  digest.add_size(plan.transfers.size());
  for (const Transfer& t : plan.transfers) {
    digest.add(t.src, t.dst);
    digest.add(t.src_row, t.dst_segment * 2 + static_cast<std::int32_t>(t.space));
    digest.add(t.dst_row, t.num_rows);
  }
  return digest.value();
}

}  // namespace magi
