// SPDX-License-Identifier: Apache-2.0
#include "support/refusal.hpp"

#include <string>

#include "magi/attention_cuda.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/guarded_tensor.hpp"

namespace magi::test {
namespace {

class ForwardRefusalTest : public GpuTest {
 protected:
  ForwardRefusalTest() {
    args_.q = {nullptr, DType::BFloat16, 0, 3, {64, 4, 128}, {512, 128, 1}};
    args_.k = {nullptr, DType::BFloat16, 0, 3, {64, 2, 128}, {256, 128, 1}};
    args_.v = args_.k;
    args_.out = args_.q;
    args_.lse = {nullptr, DType::Float32, 0, 2, {64, 4}, {4, 1}};
  }

  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    buffer_ = DeviceBuffer(1 << 20);
    for (TensorView* tensor : {&args_.q, &args_.k, &args_.v, &args_.out, &args_.lse}) {
      tensor->data = buffer_.data();
    }
  }

  std::string refusal_of(const ForwardArgs& args) const {
    return testing::refusal_of([&] { attention_forward_cuda(args, ForwardWork(args_), nullptr); });
  }

  ForwardArgs args_;
  DeviceBuffer buffer_;
};

TEST_F(ForwardRefusalTest, RefusesAListForOtherShapes) {
  ForwardArgs args = args_;
  args.k.shape[0] = args.v.shape[0] = 32;
  EXPECT_NE(refusal_of(args).find("work is for other shapes"), std::string::npos);
}

TEST_F(ForwardRefusalTest, NamesHeadsPerTile) {
  EXPECT_THROW(ForwardWork(args_, {.packed_heads = 3}), InvalidArgument);
  EXPECT_THROW(ForwardWork(args_, {.packed_heads = 4}), InvalidArgument);
}

}  // namespace
}  // namespace magi::test
