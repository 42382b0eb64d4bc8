// SPDX-License-Identifier: Apache-2.0
#include "magi/plan.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "capi/owned_handles.hpp"
#include "magi/mask_builders.hpp"

namespace magi::capi_test {
namespace {

Mask test_mask() {
  const std::vector<std::int32_t> documents{0, 100, 130, 256};
  return mask_from_cu_seqlens(documents, documents, {.is_causal = true});
}

magi_plan_config test_config() {
  magi_plan_config config;
  magi_plan_config_init(&config);
  config.num_ranks = 4;
  config.num_heads_q = 8;
  config.num_heads_kv = 4;
  config.overlap_degree = 2;
  return config;
}

PlanConfig cpp_config() {
  return {.num_ranks = 4, .num_heads_q = 8, .num_heads_kv = 4, .overlap_degree = 2};
}

std::string json_of(const magi_plan* plan) {
  const auto json = made<magi_buffer>([&](auto** b) { return magi_plan_to_json(plan, b); });
  return text_of(json.get());
}

class PlanAbi : public testing::Test {
 protected:
  /// A plan of `config` as it is.
  Owned<magi_plan> planned() {
    return made<magi_plan>([&](auto** p) { return magi_plan_create(mask.get(), &config, p); });
  }

  magi_plan_config config = test_config();
  Owned<magi_mask> mask = mask_from(test_mask());
  Owned<magi_plan> plan = planned();
  Plan truth = make_plan(test_mask(), cpp_config());
};

TEST_F(PlanAbi, IsThePlanOfTheCppCall) { EXPECT_EQ(json_of(plan.get()), plan_to_json(truth)); }

TEST_F(PlanAbi, TheDefaultsAreThoseOfTheCppCall) {
  magi_plan_config_init(&config);
  EXPECT_EQ(config.overlap_degree, MAGI_OVERLAP_AUTO);
  config.num_ranks = 4;
  const auto plain = planned();
  EXPECT_EQ(json_of(plain.get()), plan_to_json(make_plan(test_mask(), {.num_ranks = 4})));
}

TEST_F(PlanAbi, EveryFieldOfTheConfigArrives) {
  magi_placement_config placement;
  magi_placement_config_init(&placement);
  placement.algorithm = "min_heap";
  placement.chunk_size = 16;
  placement.min_chunks_per_rank = 2;
  magi_placement_config placement_k = placement;
  placement_k.uneven_shard = 1;
  config.placement = &placement;
  config.placement_k = &placement_k;
  config.stage_mode = MAGI_STAGES_BY_ROWS;
  config.min_stage_rows = 8;
  config.work = MAGI_WORK_QUERIES;
  config.head_dim_qk = 64;
  config.head_dim_v = 32;
  config.element_bytes = 4;
  config.bytes_per_second = 1e9;
  config.devices_per_node = 1;
  config.network_bytes_per_second = 1e8;
  config.network_seconds_per_transfer = 1e-4;
  config.max_runs = 100;
  config.seconds_per_run = 1e-5;
  config.max_exchange_bytes = -1;
  const auto other = planned();
  PlanConfig expected = cpp_config();
  expected.placement = {
      .algorithm = PlacementAlgorithm::MinHeap, .chunk_size = 16, .min_chunks_per_rank = 2};
  expected.placement_k = expected.placement;
  expected.placement_k->uneven_shard = true;
  expected.stage_mode = StageMode::Rows;
  expected.min_stage_rows = 8;
  expected.work = WorkMode::Queries;
  expected.head_dim_qk = 64;
  expected.head_dim_v = 32;
  expected.element_bytes = 4;
  expected.cost.bytes_per_second = 1e9;
  expected.devices_per_node = 1;
  expected.cost.network_bytes_per_second = 1e8;
  expected.cost.network_seconds_per_transfer = 1e-4;
  expected.max_runs = 100;
  expected.cost.seconds_per_run = 1e-5;
  expected.max_exchange_bytes = 0;
  EXPECT_EQ(json_of(other.get()), plan_to_json(make_plan(test_mask(), expected)));
}

TEST_F(PlanAbi, ACostFileSetsTheConstants) {
  const CostFile file{.machine = "a machine",
                      .cost = {.flops_per_second = 1e14,
                               .backward_flops_per_second = 9e13,
                               .bytes_per_second = 1e11,
                               .memory_bytes_per_second = 2e12,
                               .seconds_per_transfer = 1e-6,
                               .seconds_per_launch = 3e-6}};
  const std::string text = cost_file_to_json(file);
  ASSERT_EQ(magi_plan_config_read_cost(&config, text.data(), text.size()), MAGI_OK);
  const auto other = planned();
  PlanConfig expected = cpp_config();
  expected.cost = file.cost;
  EXPECT_EQ(json_of(other.get()), plan_to_json(make_plan(test_mask(), expected)));
  EXPECT_EQ(magi_plan_config_read_cost(&config, "{}", 2), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(config.flops_per_second, 1e14);
}

TEST_F(PlanAbi, RefusesWhatNoPlanCanBe) {
  const auto refusal_of = [&](const std::function<void(magi_plan_config&)>& change) {
    magi_plan_config changed = test_config();
    change(changed);
    magi_plan* refused = nullptr;
    EXPECT_EQ(magi_plan_create(mask.get(), &changed, &refused), MAGI_INVALID_ARGUMENT);
    EXPECT_EQ(refused, nullptr);
    return std::string(magi_last_error_message());
  };
  refusal_of([](magi_plan_config& bad) { bad.num_heads_kv = 3; });
  refusal_of([](magi_plan_config& bad) { bad.overlap_degree = -2; });
  refusal_of([](magi_plan_config& bad) { bad.stage_mode = 3; });
  refusal_of([](magi_plan_config& bad) { bad.work = 5; });
  refusal_of([](magi_plan_config& bad) { bad.max_exchange_bytes = 1; });
  refusal_of([](magi_plan_config& bad) { bad.max_exchange_bytes = -2; });
  refusal_of([](magi_plan_config& bad) { bad.head_shares = 1; });  // with work keys
  magi_placement_config placement;
  magi_placement_config_init(&placement);
  const auto with_placement = [&](magi_plan_config& bad) { bad.placement = &placement; };
  placement.algorithm = "best";
  EXPECT_NE(refusal_of(with_placement).find("min_heap"), std::string::npos);
  magi_placement_config_init(&placement);
  placement.uneven_shard = 5;
  EXPECT_NE(refusal_of(with_placement).find("uneven_shard is 5; allowed: 0 or 1"),
            std::string::npos);
}

TEST_F(PlanAbi, JsonGoesBothWays) {
  const std::string text = json_of(plan.get());
  const auto back =
      made<magi_plan>([&](auto** p) { return magi_plan_from_json(text.data(), text.size(), p); });
  std::int32_t is_equal = 0;
  EXPECT_EQ(magi_plan_equal(plan.get(), back.get(), &is_equal), MAGI_OK);
  EXPECT_EQ(is_equal, 1);
  config.num_ranks = 2;
  const auto other = planned();
  EXPECT_EQ(magi_plan_equal(plan.get(), other.get(), &is_equal), MAGI_OK);
  EXPECT_EQ(is_equal, 0);
  magi_plan* refused = nullptr;
  EXPECT_EQ(magi_plan_from_json("{}", 2, &refused), MAGI_INVALID_ARGUMENT);
}

TEST_F(PlanAbi, ReportsItsFigures) {
  magi_plan_report report{.struct_size = sizeof(report)};
  EXPECT_EQ(magi_plan_get_report(plan.get(), &report), MAGI_OK);
  EXPECT_EQ(report.num_ranks, 4);
  EXPECT_EQ(report.num_stages, num_stages(truth));
  EXPECT_EQ(report.digest, truth.digest);
  EXPECT_EQ(report.num_heads_q, truth.config.num_heads_q);
  EXPECT_EQ(report.num_heads_kv, truth.config.num_heads_kv);
  EXPECT_EQ(report.head_dim_qk, truth.config.head_dim_qk);
  EXPECT_EQ(report.head_dim_v, truth.config.head_dim_v);
  EXPECT_EQ(report.total_bytes, truth.report.total_bytes);
  EXPECT_EQ(std::vector<std::int64_t>(report.pair_bytes, report.pair_bytes + 16),
            truth.report.pair_bytes);
  EXPECT_EQ(std::vector<std::int64_t>(report.rank_area, report.rank_area + 4),
            truth.report.rank_area);
  EXPECT_EQ(report.balance, truth.report.balance);
  EXPECT_EQ(std::vector<std::int64_t>(report.rank_memory, report.rank_memory + 4),
            truth.report.rank_memory);
  EXPECT_EQ(std::vector<std::int64_t>(report.rank_runs, report.rank_runs + 4),
            truth.report.rank_runs);
  const auto page = made<magi_buffer>([&](auto** b) { return magi_plan_describe(plan.get(), b); });
  EXPECT_EQ(text_of(page.get()), describe(truth));
  const auto defects = made<magi_buffer>([&](auto** b) { return magi_plan_check(plan.get(), b); });
  EXPECT_EQ(text_of(defects.get()), "");
}

TEST_F(PlanAbi, PredictsItsSteps) {
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    const RankPlan& own = truth.ranks[static_cast<std::size_t>(rank)];
    for (const std::int32_t is_backward : {0, 1}) {
      const auto times = made<magi_buffer>(
          [&](auto** b) { return magi_plan_predict_steps(plan.get(), rank, is_backward, b); });
      const std::vector<Step>& steps = is_backward != 0 ? own.backward : own.forward;
      ASSERT_EQ(magi_buffer_size_bytes(times.get()), steps.size() * 2 * sizeof(std::int64_t));
      const auto* ns = static_cast<const std::int64_t*>(magi_buffer_data(times.get()));
      for (std::size_t s = 0; s < steps.size(); ++s) {
        EXPECT_LE(ns[2 * s], ns[2 * s + 1]);
        for (const std::int32_t before : steps[s].after) {
          if (before < 0) continue;
          EXPECT_GE(ns[2 * s], ns[2 * before + 1]);
        }
      }
    }
  }
  magi_buffer* refused = nullptr;
  EXPECT_EQ(magi_plan_predict_steps(plan.get(), 4, 0, &refused), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_plan_predict_steps(plan.get(), 0, 2, &refused), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "is_backward is 2; allowed: 0 or 1");
}

TEST_F(PlanAbi, ListsItsRuns) {
  const auto table = made<magi_buffer>([&](auto** b) { return magi_plan_runs(plan.get(), b); });
  const std::vector<magi::Run> runs = runs_of(truth);
  ASSERT_EQ(magi_buffer_size_bytes(table.get()), runs.size() * 4 * sizeof(std::int32_t));
  const auto* row = static_cast<const std::int32_t*>(magi_buffer_data(table.get()));
  for (const magi::Run& run : runs) {
    EXPECT_EQ((magi::Run{row[0], row[1], row[2], row[3]}), run);
    row += 4;
  }
}

TEST_F(PlanAbi, DrawsItsPictures) {
  for (std::int32_t picture = MAGI_PICTURE_MASK; picture <= MAGI_PICTURE_STEPS; ++picture) {
    const auto svg = made<magi_buffer>(
        [&](auto** b) { return magi_plan_draw(plan.get(), picture, "a title", b); });
    EXPECT_EQ(text_of(svg.get()).rfind("<svg", 0), 0u) << picture;
    EXPECT_NE(text_of(svg.get()).find("a title"), std::string::npos) << picture;
  }
  magi_buffer* none = nullptr;
  EXPECT_EQ(magi_plan_draw(plan.get(), 5, nullptr, &none), MAGI_INVALID_ARGUMENT);
  const auto seen = made<magi_mask>([&](auto** m) { return magi_plan_mask(plan.get(), m); });
  const auto svg =
      made<magi_buffer>([&](auto** b) { return magi_mask_draw(seen.get(), nullptr, b); });
  EXPECT_EQ(text_of(svg.get()).rfind("<svg", 0), 0u);
  const std::int32_t rows[] = {2, 5}, none_of_them[] = {5, 2};
  const auto draw = [&](const std::int32_t* shown, auto** b) {
    return magi_mask_draw_part(seen.get(), nullptr, shown, nullptr, b);
  };
  const auto part = made<magi_buffer>([&](auto** b) { return draw(rows, b); });
  EXPECT_NE(text_of(part.get()).find("queries 2 to 5 of "), std::string::npos);
  EXPECT_EQ(draw(none_of_them, &none), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(magi_last_error_message()).rfind("rows is 5:2; allowed: BEGIN:END with", 0),
            0u);
}

TEST_F(PlanAbi, PlacementsOutliveThePlan) {
  auto placement =
      made<magi_placement>([&](auto** p) { return magi_plan_placement_q(plan.get(), p); });
  plan.reset();
  magi_placement_info info{.struct_size = sizeof(info)};
  EXPECT_EQ(magi_placement_get_info(placement.get(), &info), MAGI_OK);
  EXPECT_EQ(std::vector<std::int32_t>(info.chunk_rank, info.chunk_rank + info.num_chunks),
            truth.placement_q.chunk_rank);
  std::int32_t rows = 0;
  EXPECT_EQ(magi_placement_rows_of(placement.get(), 3, &rows), MAGI_OK);
  EXPECT_EQ(rows, truth.placement_q.rows_of(3));
  EXPECT_EQ(magi_placement_rows_of(placement.get(), 4, &rows), MAGI_INVALID_ARGUMENT);
}

TEST_F(PlanAbi, OtherMasksGoOnTheSamePlacement) {
  const auto placement =
      made<magi_placement>([&](auto** p) { return magi_plan_placement_q(plan.get(), p); });
  const Mask window = mask_from_window({0, 256}, {0, 256}, {.left = 20, .right = 0}, 256, 256);
  const auto second = mask_from(window);
  const auto on = made<magi_plan>([&](auto** p) {
    return magi_plan_create_on(second.get(), &config, placement.get(), placement.get(), p);
  });
  EXPECT_EQ(json_of(on.get()),
            plan_to_json(make_plan_on(window, cpp_config(), truth.placement_q, truth.placement_q)));
}

TEST(PlacementAbi, FollowsTheRulesOfChunksAndPadding) {
  magi_placement_config config;
  magi_placement_config_init(&config);
  std::int32_t chunk = 0;
  EXPECT_EQ(magi_resolve_chunk_size(1000, 4, &config, &chunk), MAGI_OK);
  EXPECT_EQ(chunk, resolve_chunk_size(1000, 4, {}));
  std::int32_t padding = -1;
  EXPECT_EQ(magi_padding_rows(1000, 4, 32, &padding), MAGI_OK);
  EXPECT_EQ(padding, padding_rows(1000, 4, 32));
}

TEST(PlacementAbi, TakesLayoutsOfTheCallers) {
  const std::int32_t ranks[] = {1, 0, 1};
  const auto placement = made<magi_placement>(
      [&](auto** p) { return magi_placement_from_chunks(10, 4, 2, ranks, 3, p); });
  const auto ids = made<magi_buffer>(
      [&](auto** b) { return magi_placement_position_ids(placement.get(), 1, 9, b); });
  EXPECT_EQ(array_of<std::int64_t>(ids.get()), (std::vector<std::int64_t>{0, 1, 2, 3, 8, 8}));
  magi_placement* refused = nullptr;
  EXPECT_EQ(magi_placement_from_chunks(10, 4, 1, ranks, 3, &refused), MAGI_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace magi::capi_test
