// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "base/json.hpp"
#include "magi/cost.hpp"

namespace magi::planner {

/// The members of a cost model in JSON, alike in plans and in cost files. Those of runs and of
/// the network may be missing: files for models and machines without them do not name them.
inline std::vector<json::Field> cost_fields(CostModel& cost) {
  const CostModel usual;
  return {{"flops_per_second", json::number(cost.flops_per_second)},
          {"backward_flops_per_second", json::number(cost.backward_flops_per_second)},
          {"bytes_per_second", json::number(cost.bytes_per_second)},
          {"memory_bytes_per_second", json::number(cost.memory_bytes_per_second)},
          {"seconds_per_transfer", json::number(cost.seconds_per_transfer)},
          {"seconds_per_launch", json::number(cost.seconds_per_launch)},
          {"seconds_per_run", json::number(cost.seconds_per_run),
           cost.seconds_per_run == usual.seconds_per_run},
          {"network_bytes_per_second", json::number(cost.network_bytes_per_second),
           cost.network_bytes_per_second == usual.network_bytes_per_second},
          {"network_seconds_per_transfer", json::number(cost.network_seconds_per_transfer),
           cost.network_seconds_per_transfer == usual.network_seconds_per_transfer}};
}

}  // namespace magi::planner
