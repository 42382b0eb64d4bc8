// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <span>
#include <stdexcept>

#include "comm/mailbox_group.hpp"
#include "runtime/masks.hpp"
#include "runtime/pipeline.hpp"

// The same bits whatever carries the rows: threads, a table of C functions, processes.
namespace magi::testing {
namespace {

AttentionCase transport_case() {
  return make_case(masks_of_all_kinds(140)[5].mask, DType::Float32, {4, 2, 8, 8}, 31);
}

std::shared_ptr<const Plan> transport_plan(const AttentionCase& test) {
  PlanConfig config = plan_config(test, 3);
  config.overlap_degree = 2;
  return shared_plan(test.mask, config);
}

/// Eight ranks in two nodes, whose rows go by node; or ranks whose stages take turns in memory.
std::shared_ptr<const Plan> node_plan(const AttentionCase& test, std::int32_t num_ranks = 8,
                                      std::optional<std::int32_t> num_stages = {}) {
  PlanConfig config = plan_config(test, num_ranks);
  config.devices_per_node = num_ranks / 2;
  if (num_stages) {
    config.overlap_degree = num_stages;
    config.stage_mode = StageMode::Rows;
    config.min_stage_rows = 1;
    config.max_exchange_bytes = 13'000;
  }
  auto plan = shared_plan(test.mask, config);
  EXPECT_EQ(plan->stages_in_flight, num_stages ? 2 : 0);
  return plan;
}

/// Four ranks in two groups, whose ranks share out the heads.
std::shared_ptr<const Plan> heads_plan(const AttentionCase& test) {
  PlanConfig config = plan_config(test, 4);
  config.work = WorkMode::Heads;
  config.head_shares = 2;
  return shared_plan(test.mask, config);
}

/// One causal document with as many kv heads as query heads.
AttentionCase moving_case() {
  return make_case({256, 256, {band_slice({0, 256}, {0, 256}, MaskType::Causal)}}, DType::Float32,
                   {4, 4, 8, 8}, 32);
}

/// Eight ranks in two nodes, whose queries go by node.
std::shared_ptr<const Plan> moving_plan(const AttentionCase& test) {
  PlanConfig config = plan_config(test, 8);
  config.devices_per_node = 4;
  config.work = WorkMode::Queries;
  auto plan = shared_plan(test.mask, config);
  EXPECT_TRUE(is_by_node(*plan, Space::Queries, 1));
  return plan;
}

/// Fills what this rank does not hold (NaN) with what another rank does.
void merge_over_ranks(std::vector<double>& values, Communicator& communicator) {
  for (const auto& bytes : communicator.allgather_sync(std::as_bytes(std::span(values)))) {
    ASSERT_EQ(bytes.size(), values.size() * sizeof(double));
    for (std::size_t i = 0; i < values.size(); ++i) {
      double other;
      std::memcpy(&other, bytes.data() + i * sizeof(double), sizeof(double));
      if (!std::isnan(other)) values[i] = other;
    }
  }
}

/// A run in which every rank has a memory of its own.
PipelineRun run_apart(const AttentionCase& test, const std::shared_ptr<const Plan>& plan,
                      Communicator& communicator) {
  PipelineRun run = empty_run(test, communicator.num_ranks());
  run_rank(test, plan, communicator, run);
  for (auto* values : {&run.forward.out, &run.forward.lse, &run.gradients.dq, &run.gradients.dk,
                       &run.gradients.dv}) {
    merge_over_ranks(*values, communicator);
  }
  communicator.close_sync();
  return run;
}

/// Runs rank 0 in this process and the others in children of it, over shared memory. The counters
/// are those of rank 0.
PipelineRun run_processes(const AttentionCase& test, const std::shared_ptr<const Plan>& plan,
                          const std::string& name) {
  const std::int32_t num_ranks = plan->config.num_ranks;
  const auto run_as = [&](std::int32_t rank) {
    const auto deadline = std::chrono::seconds(20);
    const auto communicator = make_shm_group(
        rank, num_ranks, local_bootstrap(name, rank, num_ranks, deadline), {.deadline = deadline});
    return run_apart(test, plan, *communicator);
  };
  std::vector<pid_t> children;
  for (std::int32_t rank = 1; rank < num_ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("no process for another rank");
    if (child == 0) {
      try {
        run_as(rank);
        _exit(0);
      } catch (...) {
        _exit(1);
      }
    }
    children.push_back(child);
  }
  PipelineRun apart = run_as(0);
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  return apart;
}

/// NOTE: first, before this process starts threads: a forked child has none of them. So all runs of
/// processes are of one test.
TEST(Transports, ProcessesGiveTheBitsOfThreads) {
  const AttentionCase test = transport_case(), moving = moving_case();
  const std::pair<const AttentionCase&, std::shared_ptr<const Plan>> calls[] = {
      {test, transport_plan(test)},
      {test, node_plan(test)},
      {test, node_plan(test, 8, 5)},
      {test, heads_plan(test)},
      {moving, moving_plan(moving)}};
  std::vector<PipelineRun> apart;
  for (const auto& [each, plan] : calls) {
    const std::string name = "magi-transports-test-" + std::to_string(getpid());
    apart.push_back(run_processes(each, plan, name + "-" + std::to_string(apart.size())));
  }
  for (std::size_t i = 0; i < apart.size(); ++i) {
    SCOPED_TRACE(i);
    const auto& [each, plan] = calls[i];
    const PipelineRun threads = run_pipeline(each, plan);
    EXPECT_TRUE(apart[i] == threads);
    expect_forward_close(each, apart[i].forward);
    EXPECT_EQ(apart[i].after_forward[0].bytes_to_peer, threads.after_forward[0].bytes_to_peer);
    EXPECT_EQ(apart[i].after_backward[0].bytes_to_peer, threads.after_backward[0].bytes_to_peer);
  }
}

TEST(Transports, ATableOfFunctionsGivesTheBitsOfThreads) {
  const AttentionCase test = transport_case();
  for (const auto& plan : {transport_plan(test), node_plan(test, 3, 4)}) {
    const auto tables = make_mailbox_group(3);
    PipelineRun runs[3];
    run_ranks(3, [&](Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      runs[rank] = run_apart(test, plan, *tables[rank]);
    });
    const PipelineRun threads = run_pipeline(test, plan);
    for (const PipelineRun& run : runs) EXPECT_TRUE(run == threads);
    expect_forward_close(test, threads.forward);
  }
}

}  // namespace
}  // namespace magi::testing
