// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "magi/mask_builders.hpp"
#include "magi/runtime.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/refusal.hpp"

// What calls on a GPU refuse, before anything is sent.
namespace magi::test {
namespace {

class DistributedRefusalTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const Range all{0, 16};
    plan = std::make_shared<const Plan>(make_plan(
        mask_from_window(all, all, {.left = -1, .right = 0}, 16, 16), {.num_heads_q = 4,
                                                                       .num_heads_kv = 2,
                                                                       .head_dim_qk = 64,
                                                                       .head_dim_v = 64,
                                                                       .overlap_degree = 1}));
    const auto on_gpu = [](DType dtype, std::initializer_list<std::int64_t> shape) {
      TensorView tensor = contiguous_view(reinterpret_cast<void*>(4096), dtype, shape);
      tensor.device = 0;
      return tensor;
    };
    inputs.q = on_gpu(DType::BFloat16, {16, 4, 64});
    inputs.k = on_gpu(DType::BFloat16, {16, 2, 64});
    inputs.v = inputs.k;
    result.out = inputs.q;
    result.lse = on_gpu(DType::Float32, {16, 4});
  }

  std::string refusal() {
    DistributedAttention attention(plan, *group[0]);
    return testing::refusal_of([&] { attention.forward(inputs, result); });
  }

  std::vector<std::unique_ptr<Communicator>> group = make_thread_group(1);
  std::shared_ptr<const Plan> plan;
  AttentionInputs inputs;
  AttentionResult result;
};

TEST_F(DistributedRefusalTest, TensorsAreOnOneGpu) {
  inputs.k.device = -1;
  EXPECT_EQ(refusal(), "k.device is -1; allowed: 0 (that of the call)");
  inputs.q.device = inputs.k.device = inputs.v.device = 99;
  result.out.device = result.lse.device = 99;
  EXPECT_NE(refusal().find("q.device is 99; allowed: -1 (host memory) or one of the "),
            std::string::npos);
}

TEST_F(DistributedRefusalTest, HeadDimsAreThoseOfTheKernels) {
  PlanConfig config = plan->config;
  config.head_dim_v = 264;
  plan = std::make_shared<const Plan>(make_plan(plan->mask, config));
  inputs.v.shape[2] = result.out.shape[2] = 264;
  EXPECT_EQ(refusal(),
            "plan.config.head_dim_v is 264; allowed: on a GPU multiples of 8 from 8 to 256");
}

}  // namespace
}  // namespace magi::test
