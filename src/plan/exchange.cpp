// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "base/check.hpp"
#include "magi/plan.hpp"

namespace magi {
namespace {

void require_rank(const Plan& plan, std::int32_t rank) {
  const auto num_ranks = static_cast<std::int32_t>(plan.ranks.size());
  if (rank < 0 || rank >= num_ranks) {
    throw invalid("rank", rank, "0 to " + std::to_string(num_ranks - 1));
  }
}

/// The segment of the keys that a stage receives.
std::int32_t received_segment(const Plan& plan, std::int32_t stage) {
  std::vector<std::int32_t> stages;
  for (const Exchange& exchange : plan.exchanges) {
    if (exchange.role != Role::KeysValues) continue;
    if (exchange.stage == stage) return exchange.segment;
    stages.push_back(exchange.stage);
  }
  if (stages.empty()) {
    throw invalid("stage", stage, "none, for in this plan no rank receives keys");
  }
  const auto [first, last] = std::minmax_element(stages.begin(), stages.end());
  throw invalid(
      "stage", stage,
      "stages that receive keys, " + std::to_string(*first) + " to " + std::to_string(*last));
}

/// Own rows that a segment of somebody takes.
struct Sent {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t dst = 0;
};

/// Splits [0, own_rows) at every end of a sent run; each part with the ranks that take it.
void split_inputs(std::vector<Sent>& sent, std::int32_t own_rows, GroupCollectiveArgs& args) {
  std::vector<std::int32_t> bounds{0, own_rows};
  for (const Sent& run : sent) {
    bounds.push_back(run.begin);
    bounds.push_back(run.end);
  }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  std::sort(sent.begin(), sent.end(),
            [](const Sent& a, const Sent& b) { return a.begin < b.begin; });
  std::vector<Sent> active;
  std::size_t next = 0;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    std::erase_if(active, [&](const Sent& run) { return run.end <= bounds[i]; });
    while (next < sent.size() && sent[next].begin <= bounds[i]) active.push_back(sent[next++]);
    std::vector<std::int64_t> ranks;
    ranks.reserve(active.size());
    for (const Sent& run : active) ranks.push_back(run.dst);
    std::sort(ranks.begin(), ranks.end());
    args.input_split_sizes.push_back(bounds[i + 1] - bounds[i]);
    args.dst_indices.push_back(std::move(ranks));
  }
}

}  // namespace

std::vector<RowExchange> row_exchanges(const Plan& plan, std::int32_t rank, Space space) {
  require_rank(plan, rank);
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  const TokenSpace& rows = space == Space::Keys ? own.k : own.q;
  std::vector<RowExchange> exchanges(rows.segments.size());
  for (const Transfer& t : plan.transfers) {
    if (t.space != space || (t.src != rank && t.dst != rank)) continue;
    RowExchange& exchange = exchanges.at(static_cast<std::size_t>(t.dst_segment));
    if (t.src == rank) exchange.owned.push_back({t.dst, t.src_row, t.num_rows});
    if (t.dst == rank) exchange.needed.push_back({t.src, t.dst_row, t.num_rows});
  }
  return exchanges;
}

std::vector<NodeExchange> node_exchanges(const Plan& plan, std::int32_t rank, Space space) {
  require_rank(plan, rank);
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  std::vector<NodeExchange> exchanges((space == Space::Keys ? own.k : own.q).segments.size());
  for (const Hop& hop : find_hops(plan)) {
    if (hop.space != space) continue;
    NodeExchange& exchange = exchanges.at(static_cast<std::size_t>(hop.segment));
    RowExchange& rows = hop.is_onward ? exchange.onward : exchange.first;
    if (hop.from == rank) rows.owned.push_back({hop.to, hop.from_row, hop.num_rows});
    if (hop.to == rank) rows.needed.push_back({hop.from, hop.to_row, hop.num_rows});
  }
  return exchanges;
}

GroupCollectiveArgs group_collective_args(const Plan& plan, std::int32_t rank, std::int32_t stage) {
  require_rank(plan, rank);
  if (plan.num_head_shares > 1) {
    throw invalid("plan", std::to_string(plan.num_head_shares) + " head shares",
                  "plans that do not share out heads, whose rows are tokens");
  }
  const std::int32_t segment = received_segment(plan, stage);
  GroupCollectiveArgs args;
  std::vector<Sent> sent;
  for (const Transfer& t : plan.transfers) {
    if (t.space != Space::Keys || t.dst_segment != segment || t.src == t.dst) continue;
    if (t.src == rank) sent.push_back({t.src_row, t.src_row + t.num_rows, t.dst});
    if (t.dst == rank) {
      args.output_split_sizes.push_back(t.num_rows);
      args.src_index.push_back(t.src);
    }
  }
  split_inputs(sent, plan.ranks[static_cast<std::size_t>(rank)].k.segments[0].num_rows, args);
  return args;
}

}  // namespace magi
