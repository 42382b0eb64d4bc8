// SPDX-License-Identifier: Apache-2.0
#include "plan/node_groups.hpp"

namespace magi::planner {

NodeGroups::NodeGroups(const Plan& plan)
    : plan_(plan), num_ranks_(static_cast<std::size_t>(plan.config.num_ranks)) {
  std::int16_t last_segment = 0;
  for (const Transfer& t : plan.transfers) last_segment = std::max(last_segment, t.dst_segment);
  begin_.resize((static_cast<std::size_t>(last_segment) + 1) * num_ranks_ + 1);
}

std::span<const Transfer> NodeGroups::take_node(std::span<const Transfer>& rest) const {
  const std::int32_t size = plan_.config.devices_per_node;
  const Space space = rest.front().space;
  const std::int32_t begin = rest.front().dst / size * size;
  std::size_t count = 0;
  while (count < rest.size() && rest[count].space == space && rest[count].dst >= begin &&
         rest[count].dst < begin + size) {
    ++count;
  }
  const std::span<const Transfer> taken = rest.first(count);
  rest = rest.subspan(count);
  return taken;
}

}  // namespace magi::planner
