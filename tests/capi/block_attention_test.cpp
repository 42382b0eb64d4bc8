// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>

#include "capi/problem.hpp"

namespace magi::capi_test {
namespace {

/// Masks of blocks are for GPUs; every function says so of tensors in host memory.
TEST(BlockAttentionAbi, HostMemoryIsRefused) {
  const std::uint8_t visible = 1;
  const magi_block_mask mask{
      .struct_size = sizeof(mask), .visible = &visible, .heads = 1, .q_block = 64, .k_block = 64};
  Problem problem;
  int32_t is_taken = 7;
  size_t size_bytes = 7;
  EXPECT_EQ(magi_block_attention_takes(&mask, &problem.inputs, &is_taken), MAGI_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(magi_last_error_message(), "q.device is -1"), nullptr);
  EXPECT_EQ(magi_block_attention_workspace_bytes(&mask, &problem.inputs, &size_bytes),
            MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_block_attention_forward(&mask, &problem.inputs, &problem.result, nullptr, nullptr),
            MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(is_taken, 7);
  EXPECT_EQ(size_bytes, 7u);
}

TEST(BlockAttentionAbi, MissingStructsAreRefused) {
  Problem problem;
  int32_t is_taken = 7;
  EXPECT_EQ(magi_block_attention_takes(nullptr, &problem.inputs, &is_taken), MAGI_INVALID_ARGUMENT);
  magi_block_mask mask{};
  EXPECT_EQ(magi_block_attention_takes(&mask, &problem.inputs, &is_taken), MAGI_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace magi::capi_test
