// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capi/owned_handles.hpp"
#include "capi/problem.hpp"
#include "magi/mask_builders.hpp"

namespace magi::capi_test {
namespace {

using ::testing::HasSubstr;

Mask full_mask() { return {kRows, kRows, {band_slice({0, kRows}, {0, kRows}, MaskType::Full)}}; }

class Outputs : public ::testing::Test {
 protected:
  std::string forward() {
    const magi_status status =
        magi_flex_attention_forward(mask.get(), &problem.inputs, &problem.result, nullptr);
    return status == MAGI_OK ? "" : magi_last_error_message();
  }
  std::string backward() {
    const magi_status status = magi_flex_attention_backward(
        mask.get(), &problem.inputs, &problem.result, &problem.gradients, nullptr);
    return status == MAGI_OK ? "" : magi_last_error_message();
  }

  Owned<magi_mask> mask = mask_from(full_mask());
  Problem problem;
};

TEST_F(Outputs, ElementsThatShareMemoryAreRefused) {
  problem.out.tensor.stride[1] = 0;
  EXPECT_THAT(forward(), HasSubstr("out.stride[1] is 0; allowed: strides by which"));
  problem.out.tensor.stride[1] = 7;
  EXPECT_THAT(forward(), HasSubstr("out.stride[1] is 7"));
  problem.out.tensor.stride[1] = 8;
  problem.out.tensor.stride[0] = 31;
  EXPECT_THAT(forward(), HasSubstr("out.stride[0] is 31"));
  problem.out.tensor.stride[0] = 32;
  problem.lse.tensor.stride[0] = 0;
  EXPECT_THAT(forward(), HasSubstr("lse.stride[0] is 0"));
  problem.lse.tensor.stride[0] = 4;
  EXPECT_EQ(forward(), "");
  problem.dv.tensor.stride[0] = 0;
  EXPECT_THAT(backward(), HasSubstr("dv.stride[0] is 0"));
}

TEST_F(Outputs, InputsMayRepeatElements) {
  problem.k.tensor.stride[0] = 0;
  problem.v.tensor.stride[1] = 0;
  EXPECT_EQ(forward(), "");
  EXPECT_EQ(backward(), "");
}

TEST_F(Outputs, OutputsThatShareMemoryAreRefused) {
  EXPECT_EQ(forward(), "");
  problem.dk.tensor.data = problem.dv.tensor.data;
  EXPECT_THAT(backward(), HasSubstr("dk is overlapping dv in memory; allowed: outputs that lie"));
  // In memory of their own, where no third tensor lies behind dv.
  std::vector<float> both(std::size_t{2} * kRows * 2 * 8);
  problem.dv.tensor.data = both.data();
  problem.dk.tensor.data = both.data() + kRows * 2 * 8 - 1;
  EXPECT_THAT(backward(), HasSubstr("dk is overlapping dv"));
  problem.dk.tensor.data = problem.dk.values.data();
  problem.dv.tensor.data = problem.dv.values.data();
  problem.dq.tensor.data = problem.q.values.data();
  EXPECT_THAT(backward(), HasSubstr("dq is overlapping q"));
  problem.dq.tensor.data = problem.dout.values.data();
  EXPECT_THAT(backward(), HasSubstr("dq is overlapping dout"));
  problem.out.tensor.data = problem.q.values.data();
  EXPECT_THAT(forward(), HasSubstr("out is overlapping q"));
}

TEST_F(Outputs, PartsOfOneBufferAreTold) {
  EXPECT_EQ(forward(), "");
  EXPECT_EQ(backward(), "");
  const std::vector<float> dk = problem.dk.values, dv = problem.dv.values;
  // [rows, heads, 2, dim]: gradients of keys and values in turn.
  Array both{{kRows, 2, 2, 8}};
  for (magi_tensor* tensor : {&problem.dk.tensor, &problem.dv.tensor}) {
    tensor->stride[0] = 32;
    tensor->stride[1] = 16;
  }
  problem.dk.tensor.data = both.values.data();
  problem.dv.tensor.data = both.values.data() + 8;
  EXPECT_EQ(backward(), "");
  for (std::size_t i = 0; i < both.values.size(); ++i) {
    const std::size_t from = i / 16 * 8 + i % 8;
    ASSERT_EQ(both.values[i], i % 16 < 8 ? dk[from] : dv[from]) << i;
  }
  problem.dv.tensor.data = both.values.data() + 7;
  EXPECT_THAT(backward(), HasSubstr("dk is overlapping dv"));
  problem.dv.tensor.data = both.values.data() + 32;
  EXPECT_THAT(backward(), HasSubstr("dk is overlapping dv")) << "rows of one are in the other's";
}

TEST_F(Outputs, ShapesAndStridesBeyondAnyMemoryAreRefused) {
  const std::int64_t far = std::int64_t{1} << 40;
  problem.q.tensor.stride[1] = far + 1;
  EXPECT_THAT(forward(), HasSubstr("q.stride[1] is 1099511627777; allowed: -2^40 to 2^40"));
  problem.q.tensor.stride[1] = INT64_MIN;
  EXPECT_THAT(forward(), HasSubstr("q.stride[1] is -9223372036854775808"));
  problem.q.tensor.stride[1] = far;
  EXPECT_THAT(forward(), HasSubstr("q.stride[1] is 1099511627776; allowed: so large that"));
  problem.q.tensor.stride[1] = 8;
  problem.out.tensor.shape[0] = INT64_MAX;
  EXPECT_THAT(forward(), HasSubstr("out.shape[0] is 9223372036854775807; allowed: 0 to 2^40"));
  problem.out.tensor.shape[0] = -1;
  EXPECT_THAT(forward(), HasSubstr("out.shape[0] is -1"));
  problem.out.tensor.shape[0] = far;
  problem.out.tensor.stride[0] = 1;
  EXPECT_THAT(forward(), HasSubstr("out.shape[1] is 4; allowed: a shape of at most 2^40"));
}

TEST(Structs, SizesThatNoVersionHasAreRefused) {
  magi_comm_options options;
  magi_comm_options_init(&options);
  magi_communicator* alone = nullptr;
  for (const std::size_t size : {std::size_t{0}, sizeof(options) - 8, sizeof(options) + 4,
                                 sizeof(options) + 264, std::size_t{1} << 60, SIZE_MAX}) {
    options.struct_size = size;
    EXPECT_EQ(magi_thread_group_create(1, &options, &alone), MAGI_INVALID_ARGUMENT) << size;
    EXPECT_THAT(magi_last_error_message(), HasSubstr("options.struct_size is"));
    EXPECT_EQ(alone, nullptr);
  }
  magi_attention_limits limits{.struct_size = SIZE_MAX};
  EXPECT_EQ(magi_attention_get_limits(nullptr, MAGI_CPU_DEVICE, &limits), MAGI_INVALID_ARGUMENT);
}

TEST(Structs, InitOfNothingIsFine) {
  magi_attention_options_init(nullptr);
  magi_comm_options_init(nullptr);
  magi_nccl_options_init(nullptr);
  magi_placement_config_init(nullptr);
  magi_plan_config_init(nullptr);
}

}  // namespace
}  // namespace magi::capi_test
