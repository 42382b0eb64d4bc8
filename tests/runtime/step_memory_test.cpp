// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_memory.hpp"

#include <gtest/gtest.h>

#include "magi/mask_builders.hpp"

namespace magi {
namespace {

TEST(StepMemory, LendsTheHostsMemoryInOnePieceFromTheSecondCallOn) {
  const Range all{0, 16};
  const Plan plan = make_plan(mask_from_window(all, all, {.left = -1, .right = 0}, 16, 16), {});
  const RankSteps steps(plan, 0);
  const auto group = make_thread_group(1);
  const AttentionOptions options;
  StepMemory memory(steps, options, *group[0], kCpuDevice);
  EXPECT_EQ(memory.size_bytes(), 0U);
  const auto distance = [&] {
    memory.begin(Pass::Forward, nullptr);
    const TensorView small = memory.lend(DType::Float32, {3, 5});
    const TensorView empty = memory.lend(DType::Float64, {0, 2});
    const TensorView large = memory.lend(DType::Float32, {100, 7});
    EXPECT_FALSE(empty.empty()) << "a tensor of no rows is given";
    EXPECT_EQ(large.stride[0], 7);
    memory.end();
    return static_cast<std::byte*>(large.data) - static_cast<std::byte*>(small.data);
  };
  distance();
  const std::size_t lent = memory.size_bytes();
  EXPECT_GE(lent, (15 + 700) * sizeof(float));
  EXPECT_EQ(distance(), 512) << "behind two tensors of up to 256 bytes";
  EXPECT_EQ(memory.size_bytes(), lent);
}

}  // namespace
}  // namespace magi
