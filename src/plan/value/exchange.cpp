// SPDX-License-Identifier: Apache-2.0
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

}  // namespace magi
