// SPDX-License-Identifier: Apache-2.0
#include "plan/value/node_groups.hpp"

namespace magi::planner {

NodeGroups::NodeGroups(const Plan& plan)
    : plan_(plan), num_ranks_(static_cast<std::size_t>(plan.config.num_ranks)) {
  const RankPlan& first = plan.ranks.front();
  const std::size_t num_segments = std::max(first.k.segments.size(), first.q.segments.size());
  begin_.resize(num_segments * num_ranks_ + 1);
}

std::span<const Transfer> NodeGroups::take_node(std::span<const Transfer>& rest) const {
  const std::int32_t size = plan_.config.devices_per_node;
  const Space space = rest.front().space;
  const std::int32_t end = rest.front().dst / size * size + size;
  const auto behind = std::ranges::partition_point(
      rest, [=](const Transfer& t) { return t.space == space && t.dst < end; });
  const std::span<const Transfer> taken(rest.begin(), behind);
  rest = rest.subspan(taken.size());
  return taken;
}

}  // namespace magi::planner
