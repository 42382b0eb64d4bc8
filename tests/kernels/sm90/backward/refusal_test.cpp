// SPDX-License-Identifier: Apache-2.0
#include "support/refusal.hpp"

#include <string>

#include "magi/attention_cuda.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/guarded_tensor.hpp"

namespace magi::test {
namespace {

class BackwardRefusalTest : public GpuTest {
 protected:
  BackwardRefusalTest() {
    args_.q = {nullptr, DType::BFloat16, 0, 3, {64, 4, 128}, {512, 128, 1}};
    args_.k = {nullptr, DType::BFloat16, 0, 3, {64, 2, 128}, {256, 128, 1}};
    args_.v = args_.dk = args_.dv = args_.k;
    args_.out = args_.dout = args_.dq = args_.q;
    args_.lse = {nullptr, DType::Float32, 0, 2, {64, 4}, {4, 1}};
  }

  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    buffer_ = DeviceBuffer(1 << 20);
    for (TensorView* tensor : {&args_.q, &args_.k, &args_.v, &args_.out, &args_.lse, &args_.dout,
                               &args_.dq, &args_.dk, &args_.dv}) {
      tensor->data = buffer_.data();
    }
  }

  std::string refusal_of(const BackwardArgs& args, std::int64_t missing_bytes = 0) const {
    const BackwardWork work(args_);
    const DeviceBuffer workspace(static_cast<std::size_t>(work.workspace_bytes()));
    const DeviceWorkspace given{workspace.data(), work.workspace_bytes() - missing_bytes};
    return testing::refusal_of([&] { attention_backward_cuda(args, work, given, nullptr); });
  }

  void expect_refusal(const BackwardArgs& args, const std::string& text) const {
    const std::string seen = refusal_of(args);
    EXPECT_NE(seen.find(text), std::string::npos) << "refused with: " << seen;
  }

  BackwardArgs args_;
  DeviceBuffer buffer_;
};

TEST_F(BackwardRefusalTest, RefusesAListForOtherShapesOrTypes) {
  BackwardArgs args = args_;
  args.k.shape[0] = args.v.shape[0] = args.dk.shape[0] = args.dv.shape[0] = 32;
  expect_refusal(args, "work is for other shapes");
  args = args_;
  args.dout.dtype = DType::Float32;
  expect_refusal(args, "work is for other shapes");
}

TEST_F(BackwardRefusalTest, NamesTheWorkspace) {
  EXPECT_NE(refusal_of(args_, 1).find("workspace.size_bytes is "), std::string::npos);
}

TEST_F(BackwardRefusalTest, NamesHeadsAndMargin) {
  EXPECT_THROW(BackwardWork(args_, {.packed_heads = 3}), InvalidArgument);
  EXPECT_THROW(BackwardWork(args_, {.packed_heads = 4}), InvalidArgument);
  EXPECT_THROW(BackwardWork(args_, {.packed_heads = 2, .heads_per_item = 1}), InvalidArgument);
  EXPECT_THROW(BackwardWork(args_, {.sm_margin = 1000}), InvalidArgument);
  EXPECT_THROW(BackwardWork(args_, {.head_walk = HeadWalk(3)}), InvalidArgument);
}

}  // namespace
}  // namespace magi::test
