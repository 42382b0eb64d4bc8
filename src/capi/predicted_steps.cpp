// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "capi/handles.hpp"
#include "plan/cost/loads.hpp"
#include "plan/cost/timeline.hpp"

using namespace magi::capi;

magi_status magi_plan_predict_steps(const magi_plan* plan, int32_t rank, int32_t is_backward,
                                    magi_buffer** times) {
  return giving(times, "times", [&] {
    const magi::Plan& given = plan_of(plan);
    if (rank < 0 || rank >= given.config.num_ranks) {
      throw magi::invalid("rank", rank, "0 to " + std::to_string(given.config.num_ranks - 1));
    }
    const auto ranks = magi::planner::predict_times(given, magi::planner::PlanLoads(given),
                                                    magi::read_flag(is_backward, "is_backward"));
    std::vector<std::int64_t> table;
    for (const auto& step : ranks[static_cast<size_t>(rank)].steps) {
      table.insert(table.end(), {step.begin_ns, step.end_ns});
    }
    return table;
  });
}
