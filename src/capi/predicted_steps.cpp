// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "capi/handles.hpp"
#include "capi/status.hpp"
#include "plan/cost/loads.hpp"
#include "plan/cost/timeline.hpp"

using namespace magi::capi;

magi_status magi_plan_predict_steps(const magi_plan* plan, int32_t rank, int32_t is_backward,
                                    magi_buffer** times) {
  return guarded([&] {
    const magi::Plan& given = *require(plan, "plan").plan;
    require(times, "times");
    if (rank < 0 || rank >= given.config.num_ranks) {
      throw magi::invalid("rank", rank, "0 to " + std::to_string(given.config.num_ranks - 1));
    }
    const auto ranks = magi::planner::predict_times(given, magi::planner::PlanLoads(given),
                                                    magi::read_flag(is_backward, "is_backward"));
    std::vector<std::int64_t> table;
    for (const auto& step : ranks[static_cast<size_t>(rank)].steps) {
      table.insert(table.end(), {step.begin_ns, step.end_ns});
    }
    give(make_buffer(std::span<const std::int64_t>(table)), times);
  });
}
