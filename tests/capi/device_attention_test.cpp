// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "capi/owned_handles.hpp"

// Device tensors where there is no device; what happens on one is in device_forward_test.cpp.
namespace magi::capi_test {
namespace {

struct Call {
  magi_tensor q{.struct_size = sizeof(q),
                .dtype = MAGI_BFLOAT16,
                .device = 0,
                .rank = 3,
                .shape = {64, 4, 128},
                .stride = {512, 128, 1}};
  magi_tensor lse{.struct_size = sizeof(lse),
                  .dtype = MAGI_FLOAT32,
                  .device = 0,
                  .rank = 2,
                  .shape = {64, 4},
                  .stride = {4, 1}};
  magi_tensor pairs{.struct_size = sizeof(pairs),
                    .dtype = MAGI_INT32,
                    .device = 0,
                    .rank = 2,
                    .shape = {0, 2},
                    .stride = {2, 1}};
  magi_attention_inputs inputs{.struct_size = sizeof(inputs), .q = &q, .k = &q, .v = &q};
  magi_attention_result result{.struct_size = sizeof(result), .out = &q, .lse = &lse};
  magi_flex_ranges ranges{.struct_size = sizeof(ranges), .q_ranges = &pairs, .k_ranges = &pairs};
  magi_workspace workspace{.struct_size = sizeof(workspace)};
};

TEST(DeviceAttentionAbi, RefusesADeviceThatIsNotThere) {
  Call call;
  call.q.device = 1000;
  const auto mask = mask_from({64, 64, {}});
  EXPECT_NE(magi_flex_attention_forward(mask.get(), &call.inputs, &call.result, nullptr), MAGI_OK);
  EXPECT_STRNE(magi_last_error_message(), "");
  size_t bytes = 17;
  EXPECT_NE(magi_flex_ranges_workspace_bytes(&call.ranges, &call.inputs, &bytes), MAGI_OK);
  EXPECT_EQ(bytes, 17u);
  EXPECT_NE(
      magi_flex_ranges_forward(&call.ranges, &call.inputs, &call.result, &call.workspace, nullptr),
      MAGI_OK);
}

TEST(DeviceAttentionAbi, RangesInHostMemoryAreRefused) {
  Call call;
  call.q.device = MAGI_CPU_DEVICE;
  size_t bytes = 0;
  EXPECT_EQ(magi_flex_ranges_workspace_bytes(&call.ranges, &call.inputs, &bytes),
            MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(magi_last_error_message()).substr(0, 14), "q.device is -1");
}

TEST(DeviceAttentionAbi, StructsOfAnotherSizeAreRefused) {
  Call call;
  call.workspace.struct_size = 8;
  magi_flex_ranges_report report{.struct_size = sizeof(report)};
  EXPECT_EQ(magi_flex_ranges_report_sync(&call.workspace, &report, nullptr), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "workspace.struct_size is 8; allowed: 24 or more");
  call.ranges.struct_size = 8;
  EXPECT_EQ(
      magi_flex_ranges_forward(&call.ranges, &call.inputs, &call.result, &call.workspace, nullptr),
      MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(magi_last_error_message()).substr(0, 23), "ranges.struct_size is 8");
}

}  // namespace
}  // namespace magi::capi_test
