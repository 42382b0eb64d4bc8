// SPDX-License-Identifier: Apache-2.0
#include "magi/plan.hpp"

#include <algorithm>

#include "base/bounds.hpp"
#include "capi/handles.hpp"
#include "plan/cost/loads.hpp"
#include "plan/cost/timeline.hpp"

namespace magi::capi {
namespace {

/// The constants of a model of costs, from or to the caller's struct.
template <typename From, typename To>
void copy_cost(const From& from, To& to) {
  to.flops_per_second = from.flops_per_second;
  to.backward_flops_per_second = from.backward_flops_per_second;
  to.bytes_per_second = from.bytes_per_second;
  to.memory_bytes_per_second = from.memory_bytes_per_second;
  to.seconds_per_transfer = from.seconds_per_transfer;
  to.seconds_per_launch = from.seconds_per_launch;
  to.seconds_per_run = from.seconds_per_run;
  to.network_bytes_per_second = from.network_bytes_per_second;
  to.network_seconds_per_transfer = from.network_seconds_per_transfer;
}

/// A placement that lives in a plan: shares the plan's ownership.
std::unique_ptr<magi_placement> shared(const magi_plan* plan, Placement Plan::*placement) {
  const Plan& given = plan_of(plan);
  return std::make_unique<magi_placement>(
      magi_placement{std::shared_ptr<const Placement>(plan->plan, &(given.*placement))});
}

}  // namespace

PlanConfig read_plan_config(const magi_plan_config* config) {
  const magi_plan_config given = read_struct(config, "config");
  if (given.overlap_degree < MAGI_OVERLAP_AUTO) {
    throw invalid("overlap_degree", given.overlap_degree, "-1 (automatic) or more");
  }
  if (given.stage_mode < MAGI_STAGES_AUTO || given.stage_mode > MAGI_STAGES_BY_ROWS) {
    throw invalid("stage_mode", given.stage_mode, "0 (automatic), 1 (heads) or 2 (rows)");
  }
  if (given.work < MAGI_WORK_KEYS || given.work > MAGI_WORK_CHOSEN) {
    throw invalid("work", given.work,
                  "0 (keys), 1 (queries), 2 (automatic), 3 (heads) or 4 (chosen)");
  }
  PlanConfig result{.num_ranks = given.num_ranks,
                    .num_heads_q = given.num_heads_q,
                    .num_heads_kv = given.num_heads_kv,
                    .head_dim_qk = given.head_dim_qk,
                    .head_dim_v = given.head_dim_v,
                    .element_bytes = given.element_bytes,
                    .overlap_degree = std::nullopt,
                    .work = static_cast<WorkMode>(given.work),
                    .head_shares = given.head_shares,
                    .stage_mode = static_cast<StageMode>(given.stage_mode),
                    .min_stage_rows = given.min_stage_rows,
                    .devices_per_node = given.devices_per_node,
                    .cost = {}};
  copy_cost(given, result.cost);
  if (given.max_runs != 0) result.max_runs = given.max_runs;
  if (given.max_exchange_bytes < -1) {
    throw invalid("max_exchange_bytes", given.max_exchange_bytes, "-1 (no bound) or more");
  }
  if (given.max_exchange_bytes != 0) {
    result.max_exchange_bytes = std::max<std::int64_t>(given.max_exchange_bytes, 0);
  }
  if (given.overlap_degree != MAGI_OVERLAP_AUTO) result.overlap_degree = given.overlap_degree;
  if (given.placement != nullptr) {
    result.placement = read_placement_config(given.placement, "config.placement");
  }
  if (given.placement_k != nullptr) {
    result.placement_k = read_placement_config(given.placement_k, "config.placement_k");
  }
  return result;
}

}  // namespace magi::capi

using namespace magi::capi;

void magi_plan_config_init(magi_plan_config* config) {
  const magi::PlanConfig defaults;
  init_struct(config, magi_plan_config{
                          .struct_size = sizeof(magi_plan_config),
                          .num_ranks = defaults.num_ranks,
                          .num_heads_q = defaults.num_heads_q,
                          .num_heads_kv = defaults.num_heads_kv,
                          .head_dim_qk = defaults.head_dim_qk,
                          .head_dim_v = defaults.head_dim_v,
                          .element_bytes = defaults.element_bytes,
                          .overlap_degree = defaults.overlap_degree.value_or(MAGI_OVERLAP_AUTO),
                          .stage_mode = static_cast<int32_t>(defaults.stage_mode),
                          .min_stage_rows = defaults.min_stage_rows,
                          .work = static_cast<int32_t>(defaults.work),
                          .devices_per_node = defaults.devices_per_node,
                          .head_shares = defaults.head_shares,
                          .max_runs = defaults.max_runs.value_or(0)});
  if (config != nullptr) copy_cost(defaults.cost, *config);
}

magi_status magi_plan_config_read_cost(magi_plan_config* config, const char* text,
                                       size_t size_bytes) {
  return guarded([&] {
    static_cast<void>(read_struct(config, "config"));
    copy_cost(magi::cost_file_from_json(read_text(text, size_bytes, "text")).cost, *config);
  });
}

void magi_plan_destroy(magi_plan* plan) { delete plan; }

magi_status magi_plan_create(const magi_mask* mask, const magi_plan_config* config,
                             magi_plan** plan) {
  return giving(plan, "plan",
                [&] { return magi::make_plan(mask_of(mask), read_plan_config(config)); });
}

magi_status magi_plan_create_on(const magi_mask* mask, const magi_plan_config* config,
                                const magi_placement* placement_q,
                                const magi_placement* placement_k, magi_plan** plan) {
  return giving(plan, "plan", [&] {
    require(placement_q, "placement_q");
    require(placement_k, "placement_k");
    return magi::make_plan_on(mask_of(mask), read_plan_config(config), *placement_q->placement,
                              *placement_k->placement);
  });
}

magi_status magi_plan_from_json(const char* text, size_t size_bytes, magi_plan** plan) {
  return giving(plan, "plan",
                [&] { return magi::plan_from_json(read_text(text, size_bytes, "text")); });
}

magi_status magi_plan_to_json(const magi_plan* plan, magi_buffer** text) {
  return giving(text, "text", [&] { return magi::plan_to_json(plan_of(plan)); });
}

magi_status magi_plan_describe(const magi_plan* plan, magi_buffer** text) {
  return giving(text, "text", [&] { return magi::describe(plan_of(plan)); });
}

magi_status magi_plan_predict_steps(const magi_plan* plan, int32_t rank, int32_t is_backward,
                                    magi_buffer** times) {
  return giving(times, "times", [&] {
    const magi::Plan& given = plan_of(plan);
    magi::require_between("rank", rank, 0, given.config.num_ranks - 1);
    const auto ranks = magi::planner::predict_times(given, magi::planner::PlanLoads(given),
                                                    magi::read_flag(is_backward, "is_backward"));
    std::vector<std::int64_t> table;
    for (const auto& step : ranks[static_cast<size_t>(rank)].steps) {
      table.insert(table.end(), {step.begin_ns, step.end_ns});
    }
    return table;
  });
}

magi_status magi_plan_runs(const magi_plan* plan, magi_buffer** runs) {
  return giving(runs, "runs", [&] {
    std::vector<std::int32_t> table;
    for (const magi::Run& run : magi::runs_of(plan_of(plan))) {
      table.insert(table.end(), {run.rank, run.begin, run.end, run.parent});
    }
    return table;
  });
}

magi_status magi_plan_check(const magi_plan* plan, magi_buffer** text) {
  return giving(text, "text", [&] { return lines(magi::check_plan(plan_of(plan))); });
}

magi_status magi_plan_equal(const magi_plan* plan, const magi_plan* other, int32_t* is_equal) {
  return guarded([&] {
    const magi::Plan& second = *require(other, "other").plan;
    require(is_equal, "is_equal") = plan_of(plan) == second ? 1 : 0;
  });
}

magi_status magi_plan_placement_q(const magi_plan* plan, magi_placement** placement) {
  return giving(placement, "placement", [&] { return shared(plan, &magi::Plan::placement_q); });
}

magi_status magi_plan_placement_k(const magi_plan* plan, magi_placement** placement) {
  return giving(placement, "placement", [&] { return shared(plan, &magi::Plan::placement_k); });
}

magi_status magi_plan_mask(const magi_plan* plan, magi_mask** mask) {
  return giving(mask, "mask", [&] { return plan_of(plan).mask; });
}

magi_status magi_plan_get_report(const magi_plan* plan, magi_plan_report* report) {
  return guarded([&] {
    const magi::Plan& given = plan_of(plan);
    const magi::PlanReport& figures = given.report;
    write_struct(report,
                 magi_plan_report{.struct_size = sizeof(magi_plan_report),
                                  .num_ranks = given.config.num_ranks,
                                  .num_stages = magi::num_stages(given),
                                  .digest = given.digest,
                                  .rank_area = figures.rank_area.data(),
                                  .rank_rows = figures.rank_rows.data(),
                                  .remote_rows = figures.remote_rows.data(),
                                  .pair_bytes = figures.pair_bytes.data(),
                                  .balance = figures.balance,
                                  .total_bytes = figures.total_bytes,
                                  .lower_bound_bytes = figures.lower_bound_bytes,
                                  .ring_bytes = figures.ring_bytes,
                                  .forward_seconds = figures.forward_seconds,
                                  .backward_seconds = figures.backward_seconds,
                                  .exposed_comm_seconds = figures.exposed_comm_seconds,
                                  .num_heads_q = given.config.num_heads_q,
                                  .num_heads_kv = given.config.num_heads_kv,
                                  .head_dim_qk = given.config.head_dim_qk,
                                  .head_dim_v = given.config.head_dim_v,
                                  .rank_memory = figures.rank_memory.data(),
                                  .num_head_shares = given.num_head_shares,
                                  .rank_runs = figures.rank_runs.data()},
                 "report");
  });
}
