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

/// The rows of each segment that ranks exchange; own rows are copied by the reader itself.
std::vector<RowExchange> remote_rows(const Plan& plan, std::int32_t rank) {
  std::vector<RowExchange> exchanges = row_exchanges(plan, rank);
  for (RowExchange& exchange : exchanges) {
    const auto is_own = [rank](const PeerRows& rows) { return rows.peer == rank; };
    std::erase_if(exchange.owned, is_own);
    std::erase_if(exchange.needed, is_own);
  }
  return exchanges;
}

/// What one rank attends to in each stage; where it has no work, what the stage brings.
std::vector<Attend> attends_by_stage(const Plan& plan, const RankPlan& own) {
  std::vector<Attend> stages(static_cast<std::size_t>(num_stages(plan)));
  for (const Exchange& exchange : plan.exchanges) {
    Attend& stage = stages[static_cast<std::size_t>(exchange.stage)];
    stage.k_segment = exchange.segment;
    stage.heads = exchange.heads;
  }
  for (const Step& step : own.forward) {
    if (step.kind != StepKind::Attend) continue;
    const auto stage = static_cast<std::size_t>(stage_of(plan, own.forward, step));
    stages[stage] = own.attends[static_cast<std::size_t>(step.index)];
  }
  return stages;
}

}  // namespace

AttentionSchedule make_attention_schedule(const Plan& plan, std::int32_t rank) {
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  const std::vector<Attend> attends = attends_by_stage(plan, own);
  MAGI_CHECK(attends.front().heads == (Range{0, plan.config.num_heads_kv}));
  AttentionSchedule schedule{.rows_q = plan.placement_q.rows_of(rank),
                             .rows_k = plan.placement_k.rows_of(rank),
                             .exchanges = remote_rows(plan, rank)};
  const std::vector<std::int32_t> begins = segment_begins(own.k);
  schedule.is_gathered = attends.front().k_segment != 0;
  schedule.buffer_rows = begins.back();
  const std::int32_t group = plan.config.num_heads_q / plan.config.num_heads_kv;
  for (std::size_t w = 0; w < attends.size(); ++w) {
    const Attend& attend = attends[w];
    const auto segment = static_cast<std::size_t>(attend.k_segment);
    const auto exchange =
        std::ranges::find(plan.exchanges, static_cast<std::int32_t>(w), &Exchange::stage);
    const bool is_exchanged = exchange != plan.exchanges.end();
    const auto filled = is_exchanged ? static_cast<std::size_t>(exchange->segment) : 0;
    MAGI_CHECK(segment < own.k.segments.size());
    const auto slices = std::span(own.slices)
                            .subspan(static_cast<std::size_t>(attend.slices.begin),
                                     static_cast<std::size_t>(attend.slices.size()));
    schedule.waves.push_back({.kv_heads = attend.heads,
                              .q_heads = {attend.heads.begin * group, attend.heads.end * group},
                              .is_own = segment == 0,
                              .buffer_rows = {begins[segment], begins[segment + 1]},
                              .is_exchanged = is_exchanged,
                              .exchange = &schedule.exchanges[filled],
                              .slices = slices});
    if (w == 0 || !slices.empty()) ++schedule.num_calls;
  }
  return schedule;
}

}  // namespace magi
