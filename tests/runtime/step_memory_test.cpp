// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_memory.hpp"

#include <gtest/gtest.h>

#include "magi/mask_builders.hpp"

namespace magi {
namespace {

Plan small_plan() {
  const Range all{0, 16};
  return make_plan(mask_from_window(all, all, {.left = -1, .right = 0}, 16, 16), {});
}

class StepMemoryTest : public testing::Test {
 protected:
  const Plan plan = small_plan();
  const RankSteps steps{plan, 0};
  const std::vector<std::unique_ptr<Communicator>> group = make_thread_group(1);
  const AttentionOptions options;
  StepMemory memory{steps, options, *group[0], kCpuDevice};
};

TEST_F(StepMemoryTest, LendsTheHostsMemoryInOnePieceFromTheSecondCallOn) {
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

TEST_F(StepMemoryTest, KeepsTheHostsMemoryOfTheLargerPassForBoth) {
  const auto lend = [&](Pass pass, std::int64_t floats) {
    memory.begin(pass, nullptr);
    const TensorView first = memory.lend(DType::Float32, {floats});
    const TensorView second = memory.lend(DType::Float32, {floats});
    memory.end();
    return std::pair(static_cast<std::byte*>(first.data), static_cast<std::byte*>(second.data));
  };
  constexpr std::int64_t kFew = 64, kMany = 6400;
  for (int call = 0; call < 2; ++call) {
    lend(Pass::Forward, kFew);
    lend(Pass::Backward, kMany);
  }
  const auto [forward, behind] = lend(Pass::Forward, kFew);
  const auto [backward, second] = lend(Pass::Backward, kMany);
  EXPECT_EQ(forward, backward) << "the same piece";
  EXPECT_EQ(behind - forward, kFew * std::ptrdiff_t{sizeof(float)});
  EXPECT_EQ(second - backward, kMany * std::ptrdiff_t{sizeof(float)}) << "one piece";
}

}  // namespace
}  // namespace magi
