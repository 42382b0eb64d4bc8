// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "capi/owned_handles.hpp"
#include "capi/problem.hpp"
#include "magi/mask_builders.hpp"

namespace magi::capi_test {
namespace {

/// Lists of `entries` per query of kRows and kv head of two, filled by fill(token, at).
struct Lists {
  template <typename Fill>
  Lists(std::int64_t entries, const Fill& fill) {
    for (std::int64_t token = 0; token < kRows; ++token) {
      for (std::int64_t head = 0; head < 2; ++head) {
        for (std::int64_t at = 0; at < entries; ++at) {
          values.push_back(static_cast<std::int32_t>(fill(token, at)));
        }
      }
    }
    tensor = {.struct_size = sizeof(magi_tensor),
              .data = values.data(),
              .dtype = MAGI_INT32,
              .device = MAGI_CPU_DEVICE,
              .rank = 3,
              .shape = {kRows, 2, entries},
              .stride = {2 * entries, entries, 1}};
    report_tensor = {.struct_size = sizeof(magi_tensor),
                     .data = report,
                     .dtype = MAGI_INT64,
                     .device = MAGI_CPU_DEVICE,
                     .rank = 1,
                     .shape = {2},
                     .stride = {1}};
  }
  Lists(const Lists&) = delete;
  Lists& operator=(const Lists&) = delete;

  std::vector<std::int32_t> values;
  std::int64_t report[2] = {7, 7};
  magi_tensor tensor{}, report_tensor{};
  magi_key_lists lists{
      .struct_size = sizeof(lists), .indices = &tensor, .block_keys = 1, .report = &report_tensor};
};

TEST(ListedAttentionAbi, ListsOfAllEarlierKeysAreTheCausalMask) {
  Lists causal(kRows, [](auto token, auto at) { return at <= token ? at : -1; });
  const auto mask =
      mask_from(mask_from_window({0, kRows}, {0, kRows}, {.left = -1, .right = 0}, kRows, kRows));
  Problem listed, masked;
  ASSERT_EQ(magi_listed_attention_forward(&causal.lists, &listed.inputs, &listed.result, nullptr),
            MAGI_OK);
  ASSERT_EQ(magi_listed_attention_backward(&causal.lists, &listed.inputs, &listed.result,
                                           &listed.gradients, nullptr),
            MAGI_OK);
  EXPECT_EQ(magi_flex_attention_forward(mask.get(), &masked.inputs, &masked.result, nullptr),
            MAGI_OK);
  EXPECT_EQ(magi_flex_attention_backward(mask.get(), &masked.inputs, &masked.result,
                                         &masked.gradients, nullptr),
            MAGI_OK);
  for (const auto array : {&Problem::out, &Problem::lse, &Problem::max_logits, &Problem::dq,
                           &Problem::dk, &Problem::dv, &Problem::dsink}) {
    const std::vector<float>&a = (listed.*array).values, &b = (masked.*array).values;
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4f);
  }
  EXPECT_EQ(causal.report[0], 0);
  EXPECT_EQ(causal.report[1], -1);
}

TEST(ListedAttentionAbi, TheReportTellsOfEntriesThatAreNoBlock) {
  // Blocks of 16 of 40 keys: three.
  Lists lists(3, [](auto token, auto at) { return at == 0 ? 0 : token == 5 ? 2 + at : -1; });
  lists.lists.block_keys = 16;
  Problem problem;
  EXPECT_EQ(magi_listed_attention_forward(&lists.lists, &problem.inputs, &problem.result, nullptr),
            MAGI_OK);
  EXPECT_EQ(lists.report[0], 4);
  EXPECT_EQ(lists.report[1], (5 * 2 + 0) * 3 + 1);
}

TEST(ListedAttentionAbi, BadListsAreRefused) {
  Lists lists(1, [](auto, auto) { return 0; });
  Problem problem;
  const auto forward = [&] {
    return magi_listed_attention_forward(&lists.lists, &problem.inputs, &problem.result, nullptr);
  };
  lists.lists.block_keys = 0;
  EXPECT_EQ(forward(), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "block_keys is 0; allowed: 1 to 1073741823");
  lists.lists.block_keys = 1;
  lists.tensor.shape[1] = 1;
  EXPECT_EQ(forward(), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "indices.shape is [40, 1, 1]; allowed: [40, 2, 1]");
  lists.tensor.shape[1] = 2;
  lists.tensor.dtype = MAGI_INT64;
  EXPECT_EQ(forward(), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "indices.dtype is int64; allowed: int32");
  lists.tensor.dtype = MAGI_INT32;
  lists.tensor.device = 0;
  EXPECT_EQ(forward(), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "indices.device is 0; allowed: -1 (host memory)");
}

}  // namespace
}  // namespace magi::capi_test
