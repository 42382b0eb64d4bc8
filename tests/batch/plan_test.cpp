// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "batch/batch_support.hpp"
#include "batch/work.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

namespace magi::testing {
namespace {

std::string refusal(const std::vector<std::int32_t>& lengths, const BatchConfig& config) {
  return refusal_of([&] { plan_batch(causal_samples(lengths), config); });
}

std::size_t ranks_of(const BatchPlan& plan, std::int32_t sample) {
  std::size_t count = 0;
  for (const MicroBatch& micro_batch : plan.micro_batches) {
    count +=
        static_cast<std::size_t>(std::ranges::count(micro_batch.parts, sample, &BatchPart::sample));
  }
  return count;
}

TEST(Batch, RandomBatchesAreSoundAndEqualEachTime) {
  for (RandomStream& random : RandomStreams(100)) {
    const BatchConfig config = random_config(random);
    const std::int32_t most = config.rows_per_rank * config.num_ranks;
    const auto samples = causal_samples(random_lengths(random, most / 2));
    const BatchPlan plan = plan_batch(samples, config);
    EXPECT_EQ(check_batch(plan), std::vector<std::string>{});
    EXPECT_EQ(plan_batch(samples, config), plan);
    EXPECT_EQ(batch_from_json(batch_to_json(plan)), plan);
    const bool is_usual = config.cost == BatchCost{} && config.devices_per_node == 0;
    EXPECT_LT(is_usual ? plan.report.gap() : 1.0, 1.7);
  }
}

/// Calls `visit` with every plan of a batch over two ranks in one or two micro-batches: each sample
/// in each micro-batch, with each number of its chunks on rank 0.
void visit_plans(BatchPlan& plan, std::size_t sample, const std::function<void()>& visit) {
  if (sample == plan.samples.size()) return visit();
  const std::int32_t rows = plan.samples[sample].rows;
  const auto index = static_cast<std::int32_t>(sample);
  for (MicroBatch& micro_batch : plan.micro_batches) {
    for (std::int32_t first = 0; first <= rows; ++first) {
      const std::size_t before = micro_batch.parts.size();
      if (first > 0) micro_batch.parts.push_back({index, 0, first});
      if (first < rows) micro_batch.parts.push_back({index, 1, rows - first});
      visit_plans(plan, sample + 1, visit);
      micro_batch.parts.resize(before);
    }
  }
}

TEST(Batch, NoPlanIsBelowTheBoundAndOursIsNearTheBest) {
  double sum = 0.0;
  int count = 0;
  for (RandomStream& random : RandomStreams(40)) {
    BatchConfig config{.num_ranks = 2, .rows_per_rank = 8, .chunk_size = 1};
    config.num_micro_batches = random.between(1, 2);
    // Attention, tokens and exchange weigh alike at such lengths.
    config.cost.flops_per_pair = config.cost.flops_per_token / 4;
    config.cost.bytes_per_token = random.between(0, 2) * 4e6;
    std::vector<std::int32_t> lengths(random.chance(50) ? 3 : 4);
    for (std::int32_t& length : lengths) length = random.between(1, 4);
    const auto samples = causal_samples(lengths);
    const BatchPlan ours = plan_batch(samples, config);
    const batch::BatchWork work = batch::work_of(samples, config);
    BatchPlan plan = ours;
    for (MicroBatch& micro_batch : plan.micro_batches) micro_batch.parts.clear();
    double best = std::numeric_limits<double>::infinity();
    visit_plans(plan, 0, [&] {
      const BatchReport report = batch::make_report(plan, work);
      if (std::ranges::max(report.rank_rows) <= config.rows_per_rank) {
        best = std::min(best, report.step_seconds);
      }
    });
    EXPECT_LE(ours.report.lower_bound_seconds, best * (1 + 1e-9));
    EXPECT_LE(best, ours.report.step_seconds * (1 + 1e-9));
    sum += ours.report.step_seconds / best;
    ++count;
  }
  EXPECT_LT(sum / count, 1.06);
}

TEST(Batch, ShortSamplesStayWholeAndALongOneTakesWholeNodes) {
  std::vector<std::int32_t> lengths(400, 1500);
  lengths.push_back(200000);
  const BatchConfig config{.num_ranks = 64, .devices_per_node = 8};
  const BatchPlan plan = plan_batch(causal_samples(lengths), config);
  for (std::int32_t i = 0; i < 400; ++i) EXPECT_EQ(ranks_of(plan, i), 1u) << i;
  EXPECT_GT(ranks_of(plan, 400), 13u);  // that memory asks for
  EXPECT_EQ(ranks_of(plan, 400) % 8, 0u);
  EXPECT_LT(plan.report.gap(), 1.05);
}

TEST(Batch, LongSamplesOfManyMicroBatchesAreSharedOut) {
  const std::vector<std::int32_t> lengths{120000, 110000, 100000, 90000};
  BatchConfig config{.num_ranks = 16, .devices_per_node = 8, .num_micro_batches = 2};
  config.rows_per_rank = 32768;
  const BatchPlan plan = plan_batch(causal_samples(lengths), config);
  ASSERT_EQ(plan.micro_batches.size(), 2u);
  EXPECT_LT(plan.report.gap(), 1.06);
}

TEST(Batch, MicroBatchesBesideThatOfALongSampleAreEven) {
  // The long one has all ranks of a micro-batch; 30,000 rows would be long for one rank of another.
  std::vector<std::int32_t> lengths(100, 500);
  lengths.insert(lengths.end(), {145000, 30000, 20000, 10000});
  const BatchConfig config{.num_ranks = 16, .devices_per_node = 8, .num_micro_batches = 2};
  const BatchPlan plan = plan_batch(causal_samples(lengths), config);
  double sum = 0.0;
  for (const std::size_t first : {0u, 16u}) {
    sum += std::ranges::max(std::span(plan.report.rank_seconds).subspan(first, 16));
  }
  const batch::BatchWork work = batch::work_of(plan.samples, plan.config);
  EXPECT_LT(sum, 1.12 * static_cast<double>(work.total) / 16 / batch::kTicksPerSecond);
}

TEST(Batch, ManyLongSamplesAreNearTheBound) {
  RandomStream random(1);
  double sum = 0.0;
  constexpr int kBatches = 20;
  for (int i = 0; i < kBatches; ++i) {
    std::vector<std::int32_t> lengths(512);
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      lengths[s] = s < 16 ? random.between(10000, 60000) : random.between(100, 1000);
    }
    const BatchConfig config{.num_ranks = 64, .devices_per_node = 8};
    sum += plan_batch(causal_samples(lengths), config).report.gap();
  }
  EXPECT_LT(sum / kBatches, 1.018);
}

TEST(Batch, ExchangeThatCostsMoreThanItGainsKeepsSamplesWhole) {
  BatchConfig config{.num_ranks = 4, .rows_per_rank = 1000};
  config.cost.bytes_per_token = 1e12;
  const BatchPlan plan = plan_batch(causal_samples({900, 10, 10, 10}), config);
  EXPECT_EQ(ranks_of(plan, 0), 1u);
  config.rows_per_rank = 500;  // memory asks for two ranks all the same
  EXPECT_EQ(ranks_of(plan_batch(causal_samples({900, 10, 10, 10}), config), 0), 2u);
}

TEST(Batch, BatchesAtTheEdge) {
  const BatchConfig config{.num_ranks = 4};
  const BatchPlan none = plan_batch({}, config);
  EXPECT_TRUE(none.micro_batches.empty());
  EXPECT_EQ(none.report.gap(), 1.0);
  EXPECT_TRUE(plan_batch(causal_samples({0, 0}), config).micro_batches.empty());
  EXPECT_EQ(plan_batch(causal_samples({1}), config).micro_batches.size(), 1u);
  const BatchPlan fixed =
      plan_batch(causal_samples({0, 3}), {.num_ranks = 4, .num_micro_batches = 3});
  EXPECT_EQ(fixed.micro_batches.size(), 3u);
  for (const BatchPlan* plan : {&none, &fixed}) EXPECT_TRUE(check_batch(*plan).empty());
}

TEST(Batch, WhatDoesNotFitIsNamedWithWhatItNeeds) {
  const BatchConfig config{.num_ranks = 2, .rows_per_rank = 100, .chunk_size = 10};
  EXPECT_EQ(
      refusal({5, 201}, config),
      "sample 1: rows is 201; allowed: up to 200 on 2 ranks of 100 rows; it needs 3 ranks, or "
      "rows_per_rank 110");
  BatchConfig fixed = config;
  fixed.num_micro_batches = 1;
  EXPECT_EQ(
      refusal({90, 90, 90}, fixed),
      "num_micro_batches is 1; allowed: 0 (as many as are needed), or 2 or more for 270 rows");
}

TEST(Batch, BadConfigsAreRefused) {
  const auto refused = [](BatchConfig config) { return refusal({10}, config); };
  EXPECT_EQ(refused({.num_ranks = 0}), "num_ranks is 0; allowed: 1 to 4096");
  EXPECT_EQ(refused({.rows_per_rank = 0}), "rows_per_rank is 0; allowed: 1 to 1073741823");
  EXPECT_EQ(refused({.devices_per_node = -1}), "devices_per_node is -1; allowed: 0 to 4096");
  EXPECT_EQ(refused({.num_micro_batches = -1}), "num_micro_batches is -1; allowed: 0 to 65536");
  EXPECT_EQ(refused({.rows_per_rank = 8, .chunk_size = 9}), "chunk_size is 9; allowed: 1 to 8");
  EXPECT_EQ(refused({.cost = {.bytes_per_second = 0.0}}),
            "cost.bytes_per_second is 0; allowed: finite and above 0");
  EXPECT_EQ(refused({.cost = {.flops_per_pair = -1.0}}),
            "cost.flops_per_pair is -1; allowed: finite and 0 or more");
  EXPECT_EQ(refused({.cost = {.flops_per_token = 1e25}}).substr(0, 40),
            "predicted seconds of the batch is 1.8181");
  EXPECT_EQ(refusal({-1}, {}), "sample 0: rows is -1; allowed: 0 to 1073741823");
}

}  // namespace
}  // namespace magi::testing
