// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan_support.hpp"
#include "runtime/block_plan.hpp"
#include "runtime/masks.hpp"
#include "runtime/pipeline.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

// Plans by hand in which ranks attend for queries of others: choices that the planner never makes.
namespace magi::testing {
namespace {

void expect_close(const AttentionCase& test, const Plan& plan) {
  ASSERT_NO_FATAL_FAILURE(expect_sound(plan));
  expect_pipeline_close(test, std::make_shared<const Plan>(plan));
}

std::vector<Range> sections(std::int32_t num_heads, std::int32_t num_sections) {
  std::vector<Range> heads;
  for (std::int32_t s = 0; s < num_sections; ++s) {
    heads.push_back({num_heads * s / num_sections, num_heads * (s + 1) / num_sections});
  }
  return heads;
}

TEST(ReceivedQueries, ARectangleForAnotherRankEqualsDenseAttention) {
  const Plan plan = rectangle_plan();
  for (const DType dtype : {DType::Float64, DType::Float32, DType::BFloat16}) {
    AttentionCase test = make_case(plan.mask, dtype, {4, 2});
    test.dense.dim_qk = test.dense.dim_v = 128;
    for (const SinkLayout layout : {SinkLayout::SinkHead, SinkLayout::RowSinkHead}) {
      expect_close(with_all_options(test, layout), plan);
    }
    RandomStream random(3);
    draw_values(random, test);
    expect_close(test, plan);
  }
}

/// Who attends where keys and queries of a block have different owners.
enum class Worker { OwnerOfKeys, Third };

/// Every second block that concerns two ranks is attended to by the owner of its queries.
Plan shared_work_plan(const AttentionCase& test, const Placement& rows, Worker worker,
                      std::int32_t num_sections) {
  const BlockPlanOptions options{
      .work = [&](std::int32_t q, std::int32_t k) -> BlockWork {
        const auto owner = [&](std::int32_t chunk) {
          return rows.chunk_rank[static_cast<std::size_t>(chunk)];
        };
        if (owner(q) == owner(k) || (q + k) % 2 == 0) return {.rank = owner(q)};
        if (worker == Worker::OwnerOfKeys) return {.rank = owner(k)};
        return {.rank = (std::max(owner(q), owner(k)) + 1) % rows.num_ranks};
      },
      .heads = sections(test.dense.heads_kv, num_sections)};
  return make_block_plan(test.mask, plan_config(test, rows.num_ranks), rows, rows, options);
}

TEST(ReceivedQueries, EqualDenseAttentionInEveryTypeWithSinkCapAndLseGradient) {
  const Placement rows = placement_from_chunks(120, 20, 3, {0, 1, 2, 2, 1, 0});
  const Mask mask = masks_of_all_kinds(120)[5].mask;
  for (const DType dtype : {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16}) {
    for (const SinkLayout layout : {SinkLayout::SinkHead, SinkLayout::RowSinkHead}) {
      for (const Worker worker : {Worker::OwnerOfKeys, Worker::Third}) {
        AttentionCase test = with_all_options(make_case(mask, dtype, {6, 2}), layout);
        expect_close(test, shared_work_plan(test, rows, worker, 2));
        test.result_dtype = test.real();
        expect_close(test, shared_work_plan(test, rows, worker, 1));
      }
    }
  }
}

TEST(ReceivedQueries, ARankWithoutRowsAttendsForOthers) {
  const Placement rows = placement_from_chunks(120, 30, 3, {0, 1, 1, 0});
  const Placement idle = placement_from_chunks(120, 30, 4, {0, 2, 2, 0});
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    const AttentionCase test = with_all_options(
        make_case(masks_of_all_kinds(120)[1].mask, dtype, {4, 2}), SinkLayout::SinkHead);
    expect_close(test, shared_work_plan(test, rows, Worker::Third, 1));
    expect_close(test, shared_work_plan(test, idle, Worker::OwnerOfKeys, 1));
  }
}

TEST(ReceivedQueries, EveryBlockOfOneRankMayBeAttendedToElsewhere) {
  const Placement rows = placement_from_chunks(128, 32, 2, {0, 1, 1, 0});
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    const AttentionCase test = with_all_options(
        make_case(masks_of_all_kinds(128)[1].mask, dtype, {4, 2}), SinkLayout::RowSinkHead);
    const BlockPlanOptions options{
        .work = [](std::int32_t, std::int32_t) -> BlockWork { return {.rank = 1}; },
        .heads = {{0, 2}}};
    expect_close(test, make_block_plan(test.mask, plan_config(test, 2), rows, rows, options));
  }
}

/// Own keys in two segments that hold a copy of them all, for one half of the own queries each.
TEST(ReceivedQueries, OwnRowsMayBeReadAsTwoCopies) {
  const Placement rows = placement_from_chunks(64, 16, 2, {0, 0, 1, 1});
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    const Mask mask{64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Full)}};
    const AttentionCase test = make_case(mask, dtype, {4, 2});
    const BlockPlanOptions options{
        .work = [](std::int32_t q, std::int32_t k) -> BlockWork {
          const bool is_own = q / 2 == k / 2;
          return {.rank = q / 2, .is_k_copied = is_own, .k_copy = is_own ? 1 + q % 2 : 0};
        },
        .num_received_segments = 2,
        .heads = {{0, 2}}};
    expect_close(test, make_block_plan(mask, plan_config(test, 2), rows, rows, options));
  }
}

TEST(ReceivedQueries, EqualDenseAttentionWhereRandomBlocksMove) {
  for (RandomStream& random : RandomStreams(60)) {
    const AttentionCase test = random_case(
        random, any_float_type(random),
        {.min_rows = 8, .max_rows_q = 80, .max_rows_k = 80, .is_square = random.chance(70)});
    const PlanConfig config = plan_config(test, random.between(1, 5));
    const auto place = [&](std::int32_t num_rows) {
      const std::int32_t chunk = random.between(6, 24);
      std::vector<std::int32_t> ranks(static_cast<std::size_t>((num_rows + chunk - 1) / chunk));
      for (std::int32_t& rank : ranks) rank = random.between(0, config.num_ranks - 1);
      return placement_from_chunks(num_rows, chunk, config.num_ranks, ranks);
    };
    const Placement q = place(test.mask.rows_q);
    const Placement k = place(test.mask.rows_k);
    const int percent_moved = random.between(0, 100);
    const int percent_copied = random.chance(30) ? random.between(0, 100) : 0;
    const BlockPlanOptions options{
        .work = [&](std::int32_t chunk_q, std::int32_t chunk_k) -> BlockWork {
          const std::int32_t owner_q = q.chunk_rank[static_cast<std::size_t>(chunk_q)];
          const std::int32_t owner_k = k.chunk_rank[static_cast<std::size_t>(chunk_k)];
          const std::int32_t other =
              random.chance(50) ? owner_k : random.between(0, config.num_ranks - 1);
          return {.rank = random.chance(percent_moved) ? other : owner_q,
                  .is_q_copied = random.chance(percent_copied),
                  .is_k_copied = random.chance(percent_copied)};
        },
        .num_received_segments = random.between(1, 2),
        .heads = sections(config.num_heads_kv, random.between(1, config.num_heads_kv)),
        .order = random.chance(50) ? &random : nullptr};
    expect_close(test, make_block_plan(test.mask, config, q, k, options));
  }
}

TEST(ReceivedQueries, PlansWithHopsBetweenNoNodesAreRefusedByName) {
  Plan plan = rectangle_plan();
  plan.exchanges[1].hop = 1;
  plan.digest = plan_digest(plan);
  const auto broken = check_plan(plan);
  ASSERT_FALSE(broken.empty());
  EXPECT_EQ(broken[0],
            "exchange 1 is of hop 1; 0, the direct way, and between several nodes 1 are the only "
            "ones");
  const auto start = [&](Communicator& communicator) {
    DistributedAttention(std::make_shared<const Plan>(plan), communicator);
  };
  EXPECT_NE(refusal_of([&] { run_ranks(2, start); }).find("plan.exchanges[1].hop"),
            std::string::npos);
}

}  // namespace
}  // namespace magi::testing
