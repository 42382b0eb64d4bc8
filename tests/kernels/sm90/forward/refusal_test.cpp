// SPDX-License-Identifier: Apache-2.0
#include <limits>
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
    try {
      attention_forward_cuda(args, ForwardWork(args_), nullptr);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }

  ForwardArgs args_;
  DeviceBuffer buffer_;
};

TEST_F(ForwardRefusalTest, NamesTheStride) {
  ForwardArgs args = args_;
  args.k.stride[0] = 257;
  EXPECT_NE(refusal_of(args).find("k.stride[0] is 257"), std::string::npos);
  args = args_;
  args.v.stride[2] = 2;
  EXPECT_NE(refusal_of(args).find("v.stride[2] is 2"), std::string::npos);
}

TEST_F(ForwardRefusalTest, NamesTheTensorOfAnotherTypeOrDevice) {
  ForwardArgs args = args_;
  args.v.dtype = DType::Float16;
  EXPECT_NE(refusal_of(args).find("v.dtype is float16"), std::string::npos);
  args = args_;
  args.out.device = 3;
  EXPECT_NE(refusal_of(args).find("out.device is 3"), std::string::npos);
}

TEST_F(ForwardRefusalTest, MergesOnlyIntoFloat32) {
  ForwardArgs args = args_;
  args.is_merging = true;
  EXPECT_NE(refusal_of(args).find("out.dtype is bfloat16"), std::string::npos);
}

TEST_F(ForwardRefusalTest, NamesScalesThatAreNoScales) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto& [value, text] : {std::pair{-0.5, "-0.5"}, {kNan, "nan"}, {kInfinity, "inf"}}) {
    ForwardArgs args = args_;
    args.params.softmax_scale = value;
    EXPECT_EQ(refusal_of(args), std::string("softmax_scale is ") + text +
                                    "; allowed: 0 (the default) or 1e-30 to 1e30");
    args = args_;
    args.params.softcap = value;
    EXPECT_EQ(refusal_of(args),
              std::string("softcap is ") + text + "; allowed: 0 (off) or 1e-30 to 1e30");
  }
}

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
