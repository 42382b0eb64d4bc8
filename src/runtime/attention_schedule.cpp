// SPDX-License-Identifier: Apache-2.0
#include "runtime/attention_schedule.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace magi {
namespace {

/// First row of every segment in the receive buffer; one entry more than there are segments.
std::vector<std::int32_t> segment_begins(const TokenSpace& space) {
  std::vector<std::int32_t> begins(2, 0);
  for (std::size_t s = 1; s < space.segments.size(); ++s) {
    begins.push_back(begins.back() + space.segments[s].num_rows);
  }
  return begins;
}

/// The key segment that a wave fills. A rank that receives nothing at overlap degree 0 reads its
/// own rows in place, but takes part in the exchange all the same.
std::int32_t filled_segment(const Plan& plan, std::size_t wave) {
  std::int32_t segment = 0;
  for (const RankPlan& rank : plan.ranks) {
    segment = std::max(segment, rank.waves[wave].k_segment);
  }
  return segment;
}

bool is_received(const Plan& plan, std::int32_t segment) {
  return std::ranges::any_of(plan.transfers, [segment](const Transfer& transfer) {
    return transfer.dst_segment == segment;
  });
}

}  // namespace

AttentionSchedule make_attention_schedule(const Plan& plan, std::int32_t rank) {
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  MAGI_CHECK(own.waves.size() == static_cast<std::size_t>(plan.num_waves) && !own.waves.empty());
  MAGI_CHECK(own.waves.front().heads == (Range{0, plan.config.num_heads_kv}));
  AttentionSchedule schedule{.rows_q = plan.placement_q.rows_of(rank),
                             .rows_k = plan.placement_k.rows_of(rank),
                             .exchanges = row_exchanges(plan, rank)};
  const std::vector<std::int32_t> begins = segment_begins(own.k);
  schedule.is_gathered = own.waves.front().k_segment != 0;
  schedule.buffer_rows = begins.back();
  const std::int32_t group = plan.config.num_heads_q / plan.config.num_heads_kv;
  for (std::size_t w = 0; w < own.waves.size(); ++w) {
    const Wave& wave = own.waves[w];
    const auto segment = static_cast<std::size_t>(wave.k_segment);
    const std::int32_t filled = filled_segment(plan, w);
    MAGI_CHECK(segment < own.k.segments.size());
    MAGI_CHECK(static_cast<std::size_t>(filled) < schedule.exchanges.size());
    const auto slices = std::span(own.slices)
                            .subspan(static_cast<std::size_t>(wave.slices.begin),
                                     static_cast<std::size_t>(wave.slices.size()));
    schedule.waves.push_back({.kv_heads = wave.heads,
                              .q_heads = {wave.heads.begin * group, wave.heads.end * group},
                              .is_own = segment == 0,
                              .buffer_rows = {begins[segment], begins[segment + 1]},
                              .is_exchanged = is_received(plan, filled),
                              .exchange = &schedule.exchanges[static_cast<std::size_t>(filled)],
                              .slices = slices});
    if (w == 0 || !slices.empty()) ++schedule.num_calls;
  }
  return schedule;
}

}  // namespace magi
