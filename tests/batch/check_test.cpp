// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>

#include "batch/batch_support.hpp"
#include "support/refusal.hpp"

namespace magi::testing {
namespace {

/// Sample 0 on both ranks, sample 1 on rank 1 of the other micro-batch.
BatchPlan plan_of_two() {
  BatchConfig config{.num_ranks = 2, .rows_per_rank = 8, .num_micro_batches = 2, .chunk_size = 4};
  config.cost.bytes_per_token = 1e9;  // so that only memory asks for ranks
  return plan_batch(causal_samples({12, 7}), config);
}

TEST(CheckBatch, EveryMutantIsRefusedBySentence) {
  ASSERT_EQ(check_batch(plan_of_two()), std::vector<std::string>{});
  const auto first_problem = [](const std::function<void(BatchPlan&)>& change) {
    BatchPlan plan = plan_of_two();
    // Micro-batch 0 is that of the sample that spreads.
    if (plan.micro_batches[0].parts.size() == 1) {
      std::swap(plan.micro_batches[0], plan.micro_batches[1]);
    }
    change(plan);
    const std::vector<std::string> problems = check_batch(plan);
    return problems.empty() ? "accepted" : problems.front();
  };
  using P = BatchPlan&;
  EXPECT_EQ(first_problem([](P p) { p.micro_batches[1].parts.clear(); }),
            "sample 1 is in no micro-batch");
  EXPECT_EQ(first_problem([](P p) { p.micro_batches[1].parts[0].rows = 6; }),
            "sample 1 has 6 rows on its ranks, not 7");
  EXPECT_EQ(first_problem([](P p) { p.micro_batches[0].parts[0].rows = 3; }),
            "sample 0 has no whole chunks on rank 0, or ranks out of order");
  EXPECT_EQ(first_problem([](P p) { p.micro_batches[0].parts[0].rows += 4; }),
            "sample 0 has 16 rows on its ranks, not 12");
  EXPECT_EQ(first_problem([](P p) { p.micro_batches[1].parts[0].rank = 2; }),
            "micro-batch 1 gives 7 rows of sample 1 to rank 2");
  EXPECT_EQ(first_problem([](P p) { p.micro_batches[1].parts[0].sample = 2; }),
            "micro-batch 1 gives 7 rows of sample 2 to rank " +
                std::to_string(plan_of_two().micro_batches[1].parts[0].rank));
  EXPECT_EQ(first_problem([](P p) {
              p.micro_batches[0].parts.push_back({1, 0, 7});
            }).substr(0, 24),
            "sample 1 is out of order");
  EXPECT_EQ(first_problem([](P p) { p.micro_batches.push_back(p.micro_batches[1]); }),
            "sample 1 is in micro-batch 1, and again in 2");
  EXPECT_EQ(first_problem([](P p) { p.micro_batches.push_back({}); }),
            "3 micro-batches, not 2 as asked for");
  EXPECT_EQ(first_problem([](P p) {
              p.config.rows_per_rank = 6;
              p.config.num_ranks = 3;
            }),
            "rank 0 holds 8 rows of micro-batch 0, more than 6");
  EXPECT_EQ(first_problem([](P p) { p.report.step_seconds *= 1.5; }),
            "the report has other figures than the parts");
  EXPECT_EQ(first_problem([](P p) { p.config.num_ranks = 0; }),
            "num_ranks is 0; allowed: 1 to 4096");
}

TEST(BatchJson, IsReadBackAndRefusesOtherTexts) {
  const BatchPlan plan = plan_of_two();
  const std::string text = batch_to_json(plan);
  EXPECT_EQ(batch_from_json(text), plan);
  const auto refusal = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    return refusal_of([&] { batch_from_json(changed); });
  };
  EXPECT_EQ(refusal("\"version\": 1", "\"version\": 2"), "batch JSON: version is 2; allowed: 1");
  EXPECT_NE(refusal("\"rows\"", "\"row\""), "accepted");
  EXPECT_EQ(refusal("[12,7]", "[12]"),
            "batch JSON: number of pairs is 2; allowed: 1, one a sample");
  EXPECT_EQ(refusal("[12,7]", "[12,8]").substr(0, 51),
            "batch JSON: sample 1 has 7 rows on its ranks, not 8");
}

}  // namespace
}  // namespace magi::testing
