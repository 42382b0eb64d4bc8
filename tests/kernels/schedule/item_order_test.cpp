// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/item_order.hpp"

#include <gtest/gtest.h>

#include "kernels/schedule/backward_problem.hpp"
#include "kernels/schedule/item_walk.hpp"
#include "mask/random_mask.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

TEST(ItemOrderTest, ItemsWalkEverythingOnceInOrder) {
  for (RandomStream& random : testing::RandomStreams(1000)) {
    const Mask mask = random_mask(random);
    const std::int32_t group = random.between(1, 12);
    const std::int32_t heads_kv = random.between(1, 9);
    BackwardProblem problem = problem_of(mask, heads_kv * group, heads_kv);
    problem.num_ctas = 1 << random.between(0, 8);
    problem.cache_bytes = std::int64_t{1} << random.between(10, 25);
    BackwardChoice choice{.section_heads = random.between(0, 3),
                          .is_deterministic = random.chance(50)};
    ASSERT_TRUE(walks_everything_once(
        build_backward_list(problem, mask.slices, random_shape(random), choice)));
    choice.heads_per_item = group % 2 == 0 ? group / 2 : 1;
    ASSERT_TRUE(walks_everything_once(
        build_backward_list(problem, mask.slices, random_shape(random), choice)));
  }
}

TEST(ItemOrderTest, WrongItemsAreSeen) {
  const Mask mask{1024, 1024, {band_slice({0, 1024}, {0, 1024}, MaskType::Full)}};
  const BackwardChoice choice{.packed_heads = 1, .heads_per_item = 1, .section_heads = 1};
  const BackwardList good = build_backward_list(problem_of(mask, 32, 8), mask.slices, {}, choice);
  ASSERT_TRUE(walks_everything_once(good));
  ASSERT_LT(good.spans[0].slot_heads, 8);
  BackwardList fault = good;
  fault.spans[0].section_heads = fault.spans[0].slot_heads + 1;
  EXPECT_FALSE(walks_everything_once(fault));
  fault = good;
  fault.spans.back().slot_begin -= 1;
  EXPECT_FALSE(walks_everything_once(fault));
  fault = good;
  fault.spans[0].groups_per_item = 2;
  EXPECT_FALSE(walks_everything_once(fault));
}

}  // namespace
}  // namespace magi::test
