// SPDX-License-Identifier: Apache-2.0
#include "bounds/bounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "magi/error.hpp"
#include "magi/mask_builders.hpp"
#include "plan/plan_support.hpp"

namespace magi::cli {
namespace {

using namespace magi::testing;

PlanConfig config_of(std::int32_t num_ranks) {
  return {.num_ranks = num_ranks, .num_heads_q = 8, .num_heads_kv = 2};
}

Mask documents(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> ends = {0};
  for (const std::int32_t length : lengths) ends.push_back(ends.back() + length);
  return mask_from_cu_seqlens(ends, ends, {.is_causal = true});
}

Plan plan_of(const Mask& mask, std::int32_t num_ranks, std::int32_t chunk_size) {
  PlanConfig config = config_of(num_ranks);
  config.placement.chunk_size = chunk_size;
  return make_plan(mask, config);
}

/// All placements of `num_chunks` chunks on `num_ranks` ranks.
std::vector<std::vector<std::int32_t>> all_placements(std::int32_t num_chunks,
                                                      std::int32_t num_ranks) {
  std::vector<std::vector<std::int32_t>> all = {{}};
  for (std::int32_t c = 0; c < num_chunks; ++c) {
    std::vector<std::vector<std::int32_t>> longer;
    for (const auto& placed : all) {
      for (std::int32_t r = 0; r < num_ranks; ++r) {
        longer.push_back(placed);
        longer.back().push_back(r);
      }
    }
    all = std::move(longer);
  }
  return all;
}

struct Outcome {
  std::vector<std::int32_t> chunk_rank;
  std::int64_t chunks = 0;  ///< of the fullest rank
  std::int64_t area = 0;    ///< of the busiest rank
  std::int64_t rows = 0;    ///< received
  double balance = 1.0;
};

std::vector<Outcome> all_outcomes(const Mask& mask, std::int32_t num_ranks,
                                  std::int32_t chunk_size) {
  std::vector<Outcome> outcomes;
  for (auto& chunk_rank : all_placements(mask.rows_q / chunk_size, num_ranks)) {
    const Placement placement =
        placement_from_chunks(mask.rows_q, chunk_size, num_ranks, chunk_rank);
    const PlacementCost cost = placement_cost(mask, placement);
    Outcome outcome{.chunk_rank = chunk_rank, .balance = cost.balance};
    for (std::int32_t r = 0; r < num_ranks; ++r) {
      outcome.chunks = std::max<std::int64_t>(outcome.chunks, std::ssize(placement.chunks_of(r)));
    }
    outcome.area = std::ranges::max(cost.area);
    outcome.rows =
        std::accumulate(cost.remote_rows.begin(), cost.remote_rows.end(), std::int64_t{0});
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

/// No outcome within the limits of `limits` is below its bounds.
void expect_no_less(const std::vector<Outcome>& all, const Outcome& limits,
                    const PlanBounds& bounds, const std::string& where) {
  for (const Outcome& other : all) {
    if (other.chunks > limits.chunks || other.area > limits.area) continue;
    EXPECT_LE(bounds.rows, other.rows) << where;
    EXPECT_LE(bounds.balance, other.balance * (1 + 1e-12)) << where;
  }
}

TEST(Bounds, HoldForEveryPlacementOfSmallRandomMasks) {
  std::int64_t num_proven = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    RandomStream random(seed);
    RandomMaskOptions options;
    options.min_rows = options.max_rows_q = options.max_rows_k = 14;
    options.max_slices = 4;
    options.is_square = true;
    const Mask mask = random_mask(random, options);
    const std::int32_t num_ranks = seed % 2 == 0 ? 2 : 3;
    const std::vector<Outcome> all = all_outcomes(mask, num_ranks, 2);
    for (int i = 0; i < 6; ++i) {
      const Outcome& one =
          all[static_cast<std::size_t>(random.between(0, static_cast<int>(all.size()) - 1))];
      const Placement placement = placement_from_chunks(14, 2, num_ranks, one.chunk_rank);
      const Plan plan = make_plan_on(mask, config_of(num_ranks), placement, placement);
      const PlanBounds bounds = find_bounds(plan, {.work = 1 << 20});
      num_proven += bounds.rows > 0 ? 1 : 0;
      const std::string where = "seed " + std::to_string(seed) + " placement " + std::to_string(i);
      expect_no_less(all, one, bounds, where);
    }
  }
  EXPECT_GT(num_proven, 100);
}

TEST(Bounds, HoldForEveryPlacementOfSmallDocumentsAndAreNearTheBest) {
  std::int64_t least_of_all = 0;
  std::int64_t proven_of_all = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    RandomStream random(seed);
    std::vector<std::int32_t> lengths;
    for (std::int32_t left = 32; left > 0; left -= lengths.back()) {
      lengths.push_back(std::min(left, random.between(1, 16)));
    }
    const Mask mask = documents(lengths);
    const std::vector<Outcome> all = all_outcomes(mask, 2, 4);
    const Plan plan = plan_of(mask, 2, 4);
    const PlanBounds bounds = find_bounds(plan, {.work = 1 << 24});
    const Outcome limits{.chunks = 4, .area = std::ranges::max(plan.report.rank_area)};
    expect_no_less(all, limits, bounds, "seed " + std::to_string(seed));
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const Outcome& other : all) {
      if (other.chunks <= 4 && other.area <= limits.area) least = std::min(least, other.rows);
    }
    least_of_all += least;
    proven_of_all += bounds.rows;
  }
  EXPECT_GE(10 * proven_of_all, 7 * least_of_all) << proven_of_all << " of " << least_of_all;
}

TEST(Bounds, ShortDocumentsThatBalanceForbidsToLieWholeMoveSomething) {
  // Every document fits a rank of 64 rows; but then one rank would have a document of 64 rows and
  // three times the area of one with short documents.
  const Mask mask = documents({64, 16, 16, 16, 16, 64, 16, 16, 16, 16});
  const Plan plan = plan_of(mask, 4, 8);
  ASSERT_LT(plan.report.balance, 1.1);
  const PlanBounds bounds = find_bounds(plan);
  EXPECT_GT(bounds.bytes, 2 * plan.report.lower_bound_bytes);
  EXPECT_GT(3 * bounds.bytes, 2 * plan.report.total_bytes);
  EXPECT_LE(bounds.bytes, plan.report.total_bytes);
}

TEST(Bounds, NoPlanIsBelow) {
  for (const auto algorithm :
       {PlacementAlgorithm::Auto, PlacementAlgorithm::MinHeap, PlacementAlgorithm::Zigzag}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      RandomStream random(seed);
      RandomMaskOptions options;
      options.min_rows = 64;
      options.max_rows_q = options.max_rows_k = 256;
      options.is_square = seed % 3 != 0;
      const Mask mask = random_mask(random, options);
      PlanConfig config = config_of(4);
      config.placement.algorithm = algorithm;
      config.cost.seconds_per_launch = config.cost.seconds_per_transfer = 0.0;
      if (seed % 2 != 0) {  // rows over both kinds of links take longest
        config.devices_per_node = 2;
        config.cost.flops_per_second = config.cost.backward_flops_per_second = 1e18;
        config.cost.bytes_per_second = 50e9;
        config.cost.network_bytes_per_second = 45e9;
        config.cost.network_seconds_per_transfer = 0.0;
      }
      const Plan plan = make_plan(mask, config);
      const PlanBounds bounds = find_bounds(plan, {.work = 1 << 22});
      const PlanReport& report = plan.report;
      EXPECT_LE(bounds.bytes, report.total_bytes) << "seed " << seed;
      EXPECT_GE(bounds.bytes, report.lower_bound_bytes) << "seed " << seed;
      EXPECT_EQ(bounds.layout_bytes, report.total_bytes) << "seed " << seed;
      EXPECT_LE(bounds.balance, report.balance * (1 + 1e-12)) << "seed " << seed;
      constexpr double kRounding = 1e-7;  // of every step, to whole nanoseconds
      EXPECT_LE(bounds.forward_seconds, report.forward_seconds + kRounding) << "seed " << seed;
      EXPECT_LE(bounds.backward_seconds, report.backward_seconds + kRounding) << "seed " << seed;
    }
  }
}

TEST(Bounds, ContiguousOnesAreThoseOfTheSequentialPlacement) {
  const Mask mask = documents({100, 30, 60, 66});
  PlanConfig config = config_of(4);
  config.placement.algorithm = PlacementAlgorithm::SequentialSelect;
  const Plan plan = make_plan(mask, config);
  EXPECT_EQ(find_bounds(plan, {.work = 0}).contiguous_bytes, plan.report.total_bytes);
}

TEST(Bounds, BalanceCountsWhatOneRankMustHold) {
  // Four chunks of equal rows on three ranks: two of them share a rank.
  const Mask mask{4, 4, {band_slice({0, 4}, {0, 4}, MaskType::Full)}};
  const Placement placement = placement_from_chunks(4, 1, 3, {0, 1, 2, 2});
  const Plan plan = make_plan_on(mask, config_of(3), placement, placement);
  EXPECT_DOUBLE_EQ(find_bounds(plan).balance, 1.5);
}

TEST(Bounds, CrossAttentionHasNoPrices) {
  const Mask mask{64, 128, {band_slice({0, 64}, {0, 128}, MaskType::Full)}};
  const Plan plan = make_plan(mask, config_of(4));
  const PlanBounds bounds = find_bounds(plan);
  EXPECT_EQ(bounds.bytes, plan.report.lower_bound_bytes);
}

TEST(FindBounds, MoreWorkIsUsedAndNegativeWorkRefused) {
  const Plan plan = plan_of(documents({64, 16, 16, 16, 16, 64, 16, 16, 16, 16}), 4, 8);
  EXPECT_EQ(find_bounds(plan, {.work = 0}).bytes, plan.report.lower_bound_bytes);
  EXPECT_GE(find_bounds(plan, {.work = 1 << 26}).rows, find_bounds(plan, {.work = 1 << 22}).rows);
  EXPECT_THROW(find_bounds(plan, {.work = -1}), InvalidArgument);
}

TEST(FindBounds, SoManyChunksThatNoTableHoldsThemHaveNoPrices) {
  const std::int32_t rows = 1 << 16;
  std::vector<std::int32_t> chunk_rank(rows, 0);
  std::fill(chunk_rank.begin() + rows / 2, chunk_rank.end(), 1);
  const Placement placement = placement_from_chunks(rows, 1, 2, chunk_rank);
  const Plan plan = make_plan_on(documents({rows}), config_of(2), placement, placement);
  const PlanBounds bounds = find_bounds(plan);
  EXPECT_EQ(bounds.bytes, plan.report.lower_bound_bytes);
}

}  // namespace
}  // namespace magi::cli
