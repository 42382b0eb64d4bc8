// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "magi/comm_vtable.h"
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
PipelineRun run_apart(const AttentionCase& test, Communicator& communicator) {
  PipelineRun run = empty_run(test, communicator.num_ranks());
  run_rank(test, transport_plan(test), communicator, run);
  for (auto* values : {&run.forward.out, &run.forward.lse, &run.gradients.dq, &run.gradients.dk,
                       &run.gradients.dv}) {
    merge_over_ranks(*values, communicator);
  }
  communicator.close_sync();
  return run;
}

// NOTE: first, before this process starts threads: a forked child has none of them.
TEST(Transports, ProcessesGiveTheBitsOfThreads) {
  const AttentionCase test = transport_case();
  const std::string name = "magi-transports-test-" + std::to_string(getpid());
  const auto run_as = [&](std::int32_t rank) {
    const auto deadline = std::chrono::seconds(20);
    const auto communicator =
        make_shm_group(rank, 3, local_bootstrap(name, rank, 3, deadline), {.deadline = deadline});
    return run_apart(test, *communicator);
  };
  std::vector<pid_t> children;
  for (const std::int32_t rank : {1, 2}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
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
  const PipelineRun apart = run_as(0);
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_TRUE(apart == run_pipeline(test, transport_plan(test)));
  expect_forward_close(test, apart.forward);
}

TEST(Transports, ATableOfFunctionsGivesTheBitsOfThreads) {
  const AttentionCase test = transport_case();
  std::vector<std::unique_ptr<Communicator>> tables;
  for (auto& communicator : make_thread_group(3)) {
    tables.push_back(make_vtable_group(make_comm_vtable(std::move(communicator))));
  }
  PipelineRun runs[3];
  run_ranks(3, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    runs[rank] = run_apart(test, *tables[rank]);
  });
  const PipelineRun threads = run_pipeline(test, transport_plan(test));
  for (const PipelineRun& run : runs) EXPECT_TRUE(run == threads);
}

}  // namespace
}  // namespace magi::testing
