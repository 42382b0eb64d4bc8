// SPDX-License-Identifier: Apache-2.0
#include "base/bounds.hpp"
#include "magi/plan.hpp"
#include "plan/value/spaces.hpp"

namespace magi {
namespace {

const std::vector<Segment>& segments_of(const Plan& plan, std::int32_t rank, Space space) {
  require_between("rank", rank, 0, static_cast<std::int64_t>(plan.ranks.size()) - 1);
  return planner::space_of(plan.ranks[static_cast<std::size_t>(rank)], space).segments;
}

}  // namespace

std::vector<RowExchange> row_exchanges(const Plan& plan, std::int32_t rank, Space space) {
  std::vector<RowExchange> exchanges(segments_of(plan, rank, space).size());
  for (const Transfer& t : plan.transfers) {
    if (t.space != space || (t.src != rank && t.dst != rank)) continue;
    RowExchange& exchange = exchanges.at(static_cast<std::size_t>(t.dst_segment));
    if (t.src == rank) exchange.owned.push_back({t.dst, t.src_row, t.num_rows});
    if (t.dst == rank) exchange.needed.push_back({t.src, t.dst_row, t.num_rows});
  }
  return exchanges;
}

std::vector<NodeExchange> node_exchanges(const Plan& plan, std::int32_t rank, Space space) {
  std::vector<NodeExchange> exchanges(segments_of(plan, rank, space).size());
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
