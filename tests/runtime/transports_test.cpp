// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <stdexcept>

#include "comm/mailbox_group.hpp"
#include "runtime/masks.hpp"
#include "runtime/pipeline.hpp"

// The same bits whatever carries the rows: threads, a table of C functions, processes.
namespace magi::testing {
namespace {

AttentionCase transport_case() {
  AttentionCase test;
  test.mask = masks_of_all_kinds(140)[5].mask;
  test.dense = {.rows_q = 140, .rows_k = 140, .heads_q = 4, .heads_kv = 2, .dim_qk = 8, .dim_v = 8};
  RandomStream random(31);
  draw_values(random, test);
  return test;
}

std::shared_ptr<const Plan> transport_plan(const AttentionCase& test) {
  PlanConfig config = plan_config(test, 3);
  config.overlap_degree = 2;
  return shared_plan(test.mask, config);
}

/// Eight ranks in two nodes, whose rows go by node.
std::shared_ptr<const Plan> node_plan(const AttentionCase& test) {
  PlanConfig config = plan_config(test, 8);
  config.devices_per_node = 4;
  return shared_plan(test.mask, config);
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
  AttentionCase test;
  test.mask = {256, 256, {band_slice({0, 256}, {0, 256}, MaskType::Causal)}};
  test.dense = {.rows_q = 256, .rows_k = 256, .heads_q = 4, .heads_kv = 4, .dim_qk = 8, .dim_v = 8};
  RandomStream random(32);
  draw_values(random, test);
  return test;
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

/// The same rows, straight between their owners and readers.
Plan without_nodes(const Plan& plan) {
  PlanConfig config = plan.config;
  config.devices_per_node = 0;
  return make_plan_on(plan.mask, config, plan.placement_q, plan.placement_k);
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

/// Bytes between the two nodes of eight ranks.
std::int64_t bytes_across(const std::vector<CommCounters>& counters) {
  std::int64_t bytes = 0;
  for (std::size_t from = 0; from < 8; ++from) {
    for (std::size_t to = 0; to < 8; ++to) {
      if (from / 4 != to / 4) bytes += counters[from].bytes_to_peer[to];
    }
  }
  return bytes;
}

/// Queries that go by node, and their results, over processes: the bits of threads, and fewer bytes
/// between the nodes than the same rows take straight.
void expect_moving_close(const AttentionCase& test, const std::shared_ptr<const Plan>& plan,
                         const PipelineRun& apart) {
  const PipelineRun threads = run_pipeline(test, plan);
  EXPECT_TRUE(apart == threads);
  expect_forward_close(test, apart.forward);
  EXPECT_EQ(apart.after_forward[0].bytes_to_peer, threads.after_forward[0].bytes_to_peer);
  EXPECT_EQ(apart.after_backward[0].bytes_to_peer, threads.after_backward[0].bytes_to_peer);
  Plan straight = *plan;
  for (Exchange& exchange : straight.exchanges) exchange.hop = 0;
  straight.digest = plan_digest(straight);
  const PipelineRun flat = run_pipeline(test, std::make_shared<const Plan>(straight));
  expect_forward_close(test, flat.forward);
  EXPECT_LT(bytes_across(threads.after_forward), bytes_across(flat.after_forward));
  EXPECT_LT(bytes_across(threads.after_backward), bytes_across(flat.after_backward));
}

/// NOTE: first, before this process starts threads: a forked child has none of them. So all runs of
/// processes are of one test.
TEST(Transports, ProcessesGiveTheBitsOfThreads) {
  const AttentionCase test = transport_case();
  const auto plan = transport_plan(test);
  const auto by_node = node_plan(test);
  const auto by_head = heads_plan(test);
  const std::string name = "magi-transports-test-" + std::to_string(getpid());
  const PipelineRun apart = run_processes(test, plan, name);
  const PipelineRun node_apart = run_processes(test, by_node, name + "-nodes");
  const PipelineRun heads_apart = run_processes(test, by_head, name + "-heads");
  const AttentionCase moving = moving_case();
  const auto moved = moving_plan(moving);
  const PipelineRun moved_apart = run_processes(moving, moved, name + "-moving");
  EXPECT_TRUE(apart == run_pipeline(test, plan));
  expect_forward_close(test, apart.forward);
  EXPECT_TRUE(heads_apart == run_pipeline(test, by_head));
  expect_forward_close(test, heads_apart.forward);
  const PipelineRun node_threads = run_pipeline(test, by_node);
  EXPECT_TRUE(node_apart == node_threads);
  expect_forward_close(test, node_apart.forward);
  // Eight ranks in two nodes: rank 0 sends what the report says, over either class of links.
  const std::vector<std::int64_t>& sent = node_apart.after_forward[0].bytes_to_peer;
  ASSERT_EQ(sent.size(), 8u);
  const auto& report = by_node->report.pair_bytes;
  EXPECT_EQ(sent, std::vector<std::int64_t>(report.begin(), report.begin() + 8));
  const auto straight = without_nodes(*by_node);
  const auto across = [](std::span<const std::int64_t> bytes) {
    return std::accumulate(bytes.begin() + 4, bytes.begin() + 8, std::int64_t{0});
  };
  EXPECT_GT(across(sent), 0);
  EXPECT_LE(2 * across(sent), across(straight.report.pair_bytes));
  EXPECT_EQ(node_apart.after_backward[0].bytes_to_peer,
            node_threads.after_backward[0].bytes_to_peer);
  expect_moving_close(moving, moved, moved_apart);
}

TEST(Transports, ATableOfFunctionsGivesTheBitsOfThreads) {
  const AttentionCase test = transport_case();
  const auto tables = make_mailbox_group(3);
  PipelineRun runs[3];
  run_ranks(3, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    runs[rank] = run_apart(test, transport_plan(test), *tables[rank]);
  });
  const PipelineRun threads = run_pipeline(test, transport_plan(test));
  for (const PipelineRun& run : runs) EXPECT_TRUE(run == threads);
}

}  // namespace
}  // namespace magi::testing
