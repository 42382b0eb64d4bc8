// SPDX-License-Identifier: Apache-2.0
#include "magi/plan.hpp"

#include <algorithm>

#include "capi/handles.hpp"
#include "capi/status.hpp"

namespace magi::capi {

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
                    .cost = {.flops_per_second = given.flops_per_second,
                             .backward_flops_per_second = given.backward_flops_per_second,
                             .bytes_per_second = given.bytes_per_second,
                             .memory_bytes_per_second = given.memory_bytes_per_second,
                             .seconds_per_transfer = given.seconds_per_transfer,
                             .seconds_per_launch = given.seconds_per_launch,
                             .seconds_per_run = given.seconds_per_run,
                             .network_bytes_per_second = given.network_bytes_per_second,
                             .network_seconds_per_transfer = given.network_seconds_per_transfer}};
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

namespace {

void write_cost(const CostModel& cost, magi_plan_config& config) {
  config.flops_per_second = cost.flops_per_second;
  config.backward_flops_per_second = cost.backward_flops_per_second;
  config.bytes_per_second = cost.bytes_per_second;
  config.memory_bytes_per_second = cost.memory_bytes_per_second;
  config.seconds_per_transfer = cost.seconds_per_transfer;
  config.seconds_per_launch = cost.seconds_per_launch;
  config.seconds_per_run = cost.seconds_per_run;
  config.network_bytes_per_second = cost.network_bytes_per_second;
  config.network_seconds_per_transfer = cost.network_seconds_per_transfer;
}

void give_plan(std::shared_ptr<const Plan> made, magi_plan** result) {
  give(std::make_unique<magi_plan>(magi_plan{std::move(made)}), result);
}

const Plan& plan_of(const magi_plan* handle) { return *require(handle, "plan").plan; }

/// A placement that lives in a plan: shares the plan's ownership.
void give_placement(const magi_plan* plan, const Placement& inside, magi_placement** result) {
  require(result, "placement");
  std::shared_ptr<const Placement> shared(plan->plan, &inside);
  give(std::make_unique<magi_placement>(magi_placement{std::move(shared)}), result);
}

}  // namespace
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
  if (config != nullptr) write_cost(defaults.cost, *config);
}

magi_status magi_plan_config_read_cost(magi_plan_config* config, const char* text,
                                       size_t size_bytes) {
  return guarded([&] {
    static_cast<void>(read_struct(config, "config"));
    write_cost(magi::cost_file_from_json(read_text(text, size_bytes, "text")).cost, *config);
  });
}

void magi_plan_destroy(magi_plan* plan) { delete plan; }

magi_status magi_plan_create(const magi_mask* mask, const magi_plan_config* config,
                             magi_plan** plan) {
  return guarded([&] {
    require(plan, "plan");
    give_plan(std::make_shared<const magi::Plan>(
                  magi::make_plan(require(mask, "mask").mask, read_plan_config(config))),
              plan);
  });
}

magi_status magi_plan_create_on(const magi_mask* mask, const magi_plan_config* config,
                                const magi_placement* placement_q,
                                const magi_placement* placement_k, magi_plan** plan) {
  return guarded([&] {
    require(plan, "plan");
    require(placement_q, "placement_q");
    require(placement_k, "placement_k");
    give_plan(std::make_shared<const magi::Plan>(
                  magi::make_plan_on(require(mask, "mask").mask, read_plan_config(config),
                                     *placement_q->placement, *placement_k->placement)),
              plan);
  });
}

magi_status magi_plan_from_json(const char* text, size_t size_bytes, magi_plan** plan) {
  return guarded([&] {
    require(plan, "plan");
    give_plan(std::make_shared<const magi::Plan>(
                  magi::plan_from_json(read_text(text, size_bytes, "text"))),
              plan);
  });
}

magi_status magi_plan_to_json(const magi_plan* plan, magi_buffer** text) {
  return guarded([&] {
    require(text, "text");
    give(make_text(magi::plan_to_json(plan_of(plan))), text);
  });
}

magi_status magi_plan_describe(const magi_plan* plan, magi_buffer** text) {
  return guarded([&] {
    require(text, "text");
    give(make_text(magi::describe(plan_of(plan))), text);
  });
}

magi_status magi_plan_runs(const magi_plan* plan, magi_buffer** runs) {
  return guarded([&] {
    require(runs, "runs");
    std::vector<std::int32_t> table;
    for (const magi::Run& run : magi::runs_of(plan_of(plan))) {
      table.insert(table.end(), {run.rank, run.begin, run.end, run.parent});
    }
    give(make_buffer(std::span<const std::int32_t>(table)), runs);
  });
}

magi_status magi_plan_check(const magi_plan* plan, magi_buffer** text) {
  return guarded([&] {
    require(text, "text");
    give(make_text(lines(magi::check_plan(plan_of(plan)))), text);
  });
}

magi_status magi_plan_equal(const magi_plan* plan, const magi_plan* other, int32_t* is_equal) {
  return guarded([&] {
    const magi::Plan& second = *require(other, "other").plan;
    require(is_equal, "is_equal") = plan_of(plan) == second ? 1 : 0;
  });
}

magi_status magi_plan_placement_q(const magi_plan* plan, magi_placement** placement) {
  return guarded([&] { give_placement(plan, plan_of(plan).placement_q, placement); });
}

magi_status magi_plan_placement_k(const magi_plan* plan, magi_placement** placement) {
  return guarded([&] { give_placement(plan, plan_of(plan).placement_k, placement); });
}

magi_status magi_plan_mask(const magi_plan* plan, magi_mask** mask) {
  return guarded([&] {
    require(mask, "mask");
    give(std::make_unique<magi_mask>(magi_mask{plan_of(plan).mask}), mask);
  });
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
