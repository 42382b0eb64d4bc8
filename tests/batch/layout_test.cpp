// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "batch/batch_support.hpp"
#include "magi/mask_builders.hpp"
#include "support/random_mask.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

namespace magi::testing {
namespace {

PlanConfig small_heads() {
  return {.num_heads_q = 2, .num_heads_kv = 1, .head_dim_qk = 8, .head_dim_v = 8};
}

/// Rows and visible pairs of a sample on each rank.
std::map<std::int32_t, std::pair<std::int64_t, std::int64_t>> held(const BatchPlan& plan,
                                                                   std::int32_t begin,
                                                                   std::int32_t rows,
                                                                   const Mask& mask) {
  const Placement placement = micro_batch_placement(plan, 0, mask);
  std::map<std::int32_t, std::pair<std::int64_t, std::int64_t>> held;
  for (std::int32_t row = begin; row < begin + rows; ++row) {
    const auto chunk = static_cast<std::size_t>(row / placement.chunk_size);
    auto& own = held[placement.chunk_rank[chunk]];
    ++own.first;
    for (const BandSlice& slice : mask.slices) own.second += visible_keys(slice, row).size();
  }
  return held;
}

TEST(BatchLayout, RandomBatchesBecomeSoundPlansWithTheRowsOfTheReport) {
  for (RandomStream& random : RandomStreams(20)) {
    BatchConfig config = random_config(random);
    config.num_ranks = 1 + config.num_ranks / 6;
    config.rows_per_rank = 64 + config.rows_per_rank / 10;
    config.chunk_size = config.chunk_size == 0 ? 0 : 16;
    const auto lengths = random_lengths(random, config.rows_per_rank * config.num_ranks / 2);
    const BatchPlan plan = plan_batch(causal_samples(lengths), config);
    for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
      const Plan made = plan_micro_batch(plan, static_cast<std::int32_t>(m), small_heads());
      EXPECT_EQ(check_plan(made), std::vector<std::string>{});
      std::int64_t pairs = 0;
      std::map<std::int32_t, bool> samples;
      for (const BatchPart& part : plan.micro_batches[m].parts) samples[part.sample] = true;
      for (const auto& [sample, is_here] : samples) {
        pairs += plan.samples[static_cast<std::size_t>(sample)].pairs;
      }
      EXPECT_EQ(area(made.mask), pairs);
      for (std::int32_t rank = 0; rank < plan.config.num_ranks; ++rank) {
        const std::int64_t rows =
            plan.report.rank_rows[m * static_cast<std::size_t>(plan.config.num_ranks) +
                                  static_cast<std::size_t>(rank)];
        EXPECT_EQ(made.placement_q.rows_of(rank), rows == 0 ? plan.config.chunk_size : rows)
            << "rank " << rank;
      }
    }
  }
}

TEST(BatchLayout, SamplesOfARankFollowOneAnotherFromAChunkOn) {
  BatchPlan plan{.config = {.num_ranks = 3, .rows_per_rank = 16, .chunk_size = 4},
                 .samples = causal_samples({5, 9, 2, 0})};
  plan.micro_batches = {{{{0, 0, 5}, {2, 0, 2}, {1, 0, 4}, {1, 2, 8}}}};
  const PackedMicroBatch packed = pack_micro_batch(plan, 0);
  EXPECT_EQ(packed.samples, (std::vector<PackedSample>{{0, 0}, {2, 5}, {1, 12}}));
  EXPECT_EQ(packed.num_rows, 24);  // 8 of rank 0, 4 of padding of rank 1, 12 of sample 1
  const Mask mask = micro_batch_mask(plan, 0);
  EXPECT_EQ(micro_batch_placement(plan, 0, mask).chunk_rank,
            (std::vector<std::int32_t>{0, 0, 1, 0, 2, 2}));
}

TEST(BatchLayout, NoRankOfASampleHasMorePairsThanItsRowsShare) {
  const BatchConfig config{.num_ranks = 8, .rows_per_rank = 4096, .chunk_size = 16};
  const std::vector<PrefixTreeNode> tree{{-1, 3000}, {0, 9000}, {0, 8000}};
  const Mask window = mask_from_window({0, 20000}, {0, 20000}, {500, 0}, 20000, 20000);
  for (const Mask& mask : {mask_prefix_tree(tree), window}) {
    const BatchPlan plan = plan_batch(std::vector<BatchSample>{{20000, area(mask)}}, config);
    const std::vector<Mask> masks{mask};
    const Mask packed = micro_batch_mask(plan, 0, masks);
    const auto begin = pack_micro_batch(plan, 0).samples.front().begin;
    for (const auto& [rank, own] : held(plan, begin, 20000, packed)) {
      const double share = static_cast<double>(own.second) / static_cast<double>(area(mask));
      EXPECT_LT(share, 1.03 * static_cast<double>(own.first) / 20000.0) << "rank " << rank;
    }
  }
  // Rows of a window are alike: each rank has one run of them.
  const BatchPlan plan = plan_batch(std::vector<BatchSample>{{20000, area(window)}}, config);
  const std::vector<Mask> masks{window};
  const Mask packed = micro_batch_mask(plan, 0, masks);
  EXPECT_TRUE(std::ranges::is_sorted(micro_batch_placement(plan, 0, packed).chunk_rank));
}

TEST(BatchLayout, MicroBatchesWithFewRowsOrNoneArePlans) {
  const BatchPlan plan =
      plan_batch(causal_samples({0, 3}), {.num_ranks = 8, .num_micro_batches = 2});
  for (const std::int32_t m : {0, 1}) {
    EXPECT_TRUE(check_plan(plan_micro_batch(plan, m, small_heads())).empty()) << m;
  }
}

TEST(BatchLayout, MasksOfOtherSamplesAreRefused) {
  const BatchPlan plan = plan_batch(causal_samples({5, 9}), {.num_ranks = 2});
  const std::vector<Mask> one{{5, 5, {}}};
  EXPECT_EQ(refusal_of([&] { micro_batch_mask(plan, 0, one); }),
            "number of masks is 1; allowed: 0 (causal), or 2, one a sample");
  const Mask five = mask_from_window({0, 5}, {0, 5}, {-1, 0}, 5, 5);
  EXPECT_EQ(refusal_of([&] {
              micro_batch_mask(plan, 0, std::vector{five, Mask{8, 8, {}}});
            }),
            "rows of mask 1 is 8; allowed: 9, as many queries as keys, as the sample has");
  EXPECT_EQ(refusal_of([&] {
              micro_batch_mask(plan, 0, std::vector{five, Mask{9, 9, {}}});
            }),
            "visible pairs of mask 1 is 0; allowed: 45, those of the sample");
  EXPECT_EQ(refusal_of([&] { pack_micro_batch(plan, 1); }),
            "micro_batch is 1; allowed: 0 or more, below their number, 1");
  EXPECT_EQ(refusal_of([&] { micro_batch_placement(plan, 0, one[0]); }).substr(0, 41),
            "rows of the micro-batch's mask is 5; allo");
}

TEST(BatchLayout, ASampleThatIsNotCausalNeedsItsMask) {
  const Mask tree = mask_prefix_tree(std::vector<PrefixTreeNode>{{-1, 30}, {0, 20}, {0, 10}});
  const std::vector<BatchSample> samples{causal_sample(7), {60, area(tree)}};
  const BatchPlan plan = batch_from_json(batch_to_json(plan_batch(samples, {})));
  EXPECT_EQ(refusal_of([&] { micro_batch_mask(plan, 0); }),
            "visible pairs of sample 1 is 1630; allowed: 1830, those of a causal sample, unless "
            "the masks of all samples are given");
  const Mask seven = mask_from_window({0, 7}, {0, 7}, {-1, 0}, 7, 7);
  EXPECT_EQ(area(micro_batch_mask(plan, 0, std::vector{seven, tree})), area(tree) + 28);
}

}  // namespace
}  // namespace magi::testing
