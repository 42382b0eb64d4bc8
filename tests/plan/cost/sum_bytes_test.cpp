// SPDX-License-Identifier: Apache-2.0
#include "plan/cost/sum_bytes.hpp"

#include <gtest/gtest.h>

#include "plan/plan_support.hpp"

namespace magi::planner {
namespace {

constexpr std::int64_t kQueryRow = 4 * 128;        // elements of 4 query heads
constexpr std::int64_t kKeyRow = 2 * (128 + 128);  // of k and v, 2 heads

/// Full attention of 64 rows on two ranks, keys alone.
Plan plan_of_keys(std::int32_t degree, std::int32_t element_bytes = 2) {
  const PlanConfig config{.num_ranks = 2,
                          .num_heads_q = 4,
                          .num_heads_kv = 2,
                          .element_bytes = element_bytes,
                          .overlap_degree = degree};
  const Mask mask{64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Full)}};
  const Placement placement = placement_from_chunks(64, 32, 2, {0, 1});
  return make_plan_on(mask, config, placement, placement);
}

std::vector<SumBytes> sums_of(const Plan& plan, bool is_backward) {
  return sum_bytes(plan, PlanLoads(plan), is_backward);
}

TEST(SumBytes, OneAttendOfARankWritesWhatIsFinal) {
  const Plan plan = plan_of_keys(0);
  ASSERT_TRUE(is_single_attend(plan));
  for (const bool is_backward : {false, true}) {
    for (const SumBytes& sums : sums_of(plan, is_backward)) {
      EXPECT_EQ(sums.of_attend(0), 0);
      EXPECT_EQ(sums.of_exchange(0), 0);
    }
  }
}

TEST(SumBytes, SeveralAttendsWriteWiderMergeAndRound) {
  const Plan plan = plan_of_keys(1);
  ASSERT_FALSE(is_single_attend(plan));
  const SumBytes forward = sums_of(plan, false)[0];
  // Two bytes more are written, six read and written to round them; a merge reads and writes four.
  EXPECT_EQ(forward.of_attend(0), 32 * kQueryRow * 8);
  EXPECT_EQ(forward.of_attend(1), 32 * kQueryRow * 8);
  EXPECT_EQ(forward.of_exchange(0), 0);
  const SumBytes backward = sums_of(plan, true)[0];
  // dq as out; own dK and dV are sums too, and those that come back are added to them.
  EXPECT_EQ(backward.of_attend(0), 32 * (kQueryRow + kKeyRow) * 8);
  EXPECT_EQ(backward.of_attend(1), 32 * kQueryRow * 8);
  EXPECT_EQ(backward.of_exchange(1), 32 * kKeyRow * 12);
}

TEST(SumBytes, ResultsOfTheSumsTypeAreNotRounded) {
  const SumBytes forward = sums_of(plan_of_keys(1, 4), false)[0];
  EXPECT_EQ(forward.of_attend(0), 0);
  EXPECT_EQ(forward.of_attend(1), 32 * kQueryRow * 8);
}

TEST(SumBytes, OwnersMergeWhatOthersComputeForThem) {
  const Plan plan = rectangle_plan();  // rank 1 computes for rank 0's queries, and merges for own
  const auto find = [&](Role role) {
    for (std::size_t e = 0; e < plan.exchanges.size(); ++e) {
      if (plan.exchanges[e].role == role) return static_cast<std::int32_t>(e);
    }
    return -1;
  };
  const std::vector<SumBytes> forward = sums_of(plan, false);
  EXPECT_EQ(forward[0].of_exchange(find(Role::Results)), 32 * kQueryRow * 12);
  EXPECT_EQ(forward[1].of_exchange(find(Role::Results)), 0);
  EXPECT_EQ(forward[0].of_attend(0), 32 * kQueryRow * 8);
  EXPECT_EQ(forward[1].of_attend(1), 32 * kQueryRow * 8);
  EXPECT_EQ(forward[1].of_attend(2), 32 * kQueryRow * 2);  // for rank 0, which rounds it
  const std::vector<SumBytes> backward = sums_of(plan, true);
  EXPECT_EQ(backward[0].of_exchange(find(Role::QueryGradients)), 32 * kQueryRow * 12);
  // The third attend adds to the gradients of own keys, which the first has written.
  EXPECT_EQ(backward[1].of_attend(2), 32 * kQueryRow * 2 + 32 * kKeyRow * 8);
}

TEST(SumBytes, SharesOfTheHeadsCopyOwnTensors) {
  PlanConfig config{.num_ranks = 2, .num_heads_q = 4, .num_heads_kv = 2, .work = WorkMode::Heads};
  const Mask mask{64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Full)}};
  const Plan shared = make_plan(mask, config);
  ASSERT_EQ(shared.num_head_shares, 2);
  // q and out of 4 heads, k and v of 2: two bytes read and two written, of 32 rows.
  EXPECT_EQ(flat_copy_bytes(shared, false), 32 * (4 + 2) * 256 * 4);
  EXPECT_EQ(flat_copy_bytes(shared, true), 2 * flat_copy_bytes(shared, false));
  EXPECT_EQ(flat_copy_bytes(plan_of_keys(1), false), 0);
  std::int64_t copied = 0;
  const std::vector<SumBytes> forward = sums_of(shared, false);
  for (std::size_t e = 0; e < shared.exchanges.size(); ++e) {
    if (shared.exchanges[e].role == Role::KeysValues) {
      copied += forward[0].of_exchange(static_cast<std::int32_t>(e));
    }
  }
  EXPECT_EQ(copied, 32 * kKeyRow / 2 * 4);  // the own rows of the share, read and written
}

TEST(SumBytes, WhatReturnsWholeIsPutIntoPlaceAndNotAdded) {
  PlanConfig config{.num_ranks = 2,
                    .num_heads_q = 4,
                    .num_heads_kv = 2,
                    .overlap_degree = 1,
                    .work = WorkMode::Heads};
  const Mask mask{64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Full)}};
  const Plan plan = make_plan(mask, config);
  ASSERT_EQ(plan.num_head_shares, 2);
  ASSERT_FALSE(is_single_attend(plan));
  for (const bool is_backward : {false, true}) {
    for (const SumBytes& sums : sums_of(plan, is_backward)) {
      for (const std::int64_t bytes : sums.attends) EXPECT_EQ(bytes, 0);
      for (std::size_t e = 0; e < plan.exchanges.size(); ++e) {
        // Own rows of a share stay on their rank: read and written, in two bytes. 32 rows.
        const std::int64_t row = bytes_per_row(plan.config, plan.exchanges[e], is_backward);
        EXPECT_EQ(sums.of_exchange(static_cast<std::int32_t>(e)), 2 * 32 * row) << "exchange " << e;
      }
    }
  }
}

TEST(SumBytes, PartsTravelAsTheyAreSummed) {
  EXPECT_EQ(sum_element_bytes({.element_bytes = 2}), 4);
  EXPECT_EQ(sum_element_bytes({.element_bytes = 8}), 8);
}

}  // namespace
}  // namespace magi::planner
