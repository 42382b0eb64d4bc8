// SPDX-License-Identifier: Apache-2.0
#include "magi/attention_backend.h"

#include <gtest/gtest.h>

#include "capi/owned_handles.hpp"
#include "capi/problem.hpp"
#include "kernels/attention/supplied_table.hpp"

namespace magi::capi_test {
namespace {

using test::table_over_cpu;
using test::TableLog;

TEST(AttentionBackendAbi, AFlexCallRunsOnTheBackendItNames) {
  TableLog log;
  magi_attention_backend table = table_over_cpu(log, "another");
  magi_attention_limits& limits = table.limits;
  limits.has_sink = limits.has_softcap = limits.has_max_logits = limits.has_dlse = 1;
  table.backward = [](void*, void*, const magi_attention_inputs*, const magi_attention_result*,
                      const magi_attention_gradients*,
                      void*) -> std::int32_t { return MAGI_INTERNAL_ERROR; };
  table.last_error = [](void*) { return "no gradients here"; };
  ASSERT_EQ(magi_attention_backend_register(&table), MAGI_OK) << magi_last_error_message();
  Problem call, by_cpu;
  call.inputs.backend = "another";
  {
    const auto mask = mask_from({kRows, kRows, {{0, kRows, 0, kRows, -1, 0}}});
    const auto forward = [&](Problem& problem) {
      return magi_flex_attention_forward(mask.get(), &problem.inputs, &problem.result, nullptr);
    };
    ASSERT_EQ(forward(call), MAGI_OK) << magi_last_error_message();
    ASSERT_EQ(forward(by_cpu), MAGI_OK);
    EXPECT_EQ(call.out.values, by_cpu.out.values);
    EXPECT_EQ(magi_flex_attention_backward(mask.get(), &call.inputs, &call.result, &call.gradients,
                                           nullptr),
              MAGI_INTERNAL_ERROR);
    EXPECT_STREQ(magi_last_error_message(), "backend another: no gradients here");
    EXPECT_EQ(magi_attention_backend_unregister("another"), MAGI_OK);
    EXPECT_EQ(log.num_destroys, 0) << "the mask keeps what was prepared";
    EXPECT_EQ(forward(call), MAGI_OK);
  }
  EXPECT_EQ(log.num_forwards, 2);
  EXPECT_EQ(log.num_destroys, 1);
}

TEST(AttentionBackendAbi, LimitsComeBack) {
  magi_attention_limits limits{.struct_size = sizeof(limits)};
  ASSERT_EQ(magi_attention_get_limits(nullptr, MAGI_CPU_DEVICE, &limits), MAGI_OK);
  EXPECT_EQ(limits.dtypes, 15);
  EXPECT_EQ(limits.min_dim_qk, 1);
  EXPECT_EQ(limits.has_sink & limits.has_softcap & limits.has_max_logits & limits.has_dlse, 1);
  TableLog log;
  const magi_attention_backend table = table_over_cpu(log, "limited");
  ASSERT_EQ(magi_attention_backend_register(&table), MAGI_OK);
  ASSERT_EQ(magi_attention_get_limits("limited", MAGI_CPU_DEVICE, &limits), MAGI_OK);
  EXPECT_EQ(limits.max_dim_v, 64);
  EXPECT_EQ(limits.dim_v_multiple, 8);
  EXPECT_EQ(limits.has_sink, 0);
  EXPECT_EQ(magi_attention_backend_unregister("limited"), MAGI_OK);
  EXPECT_EQ(magi_attention_get_limits("limited", MAGI_CPU_DEVICE, &limits), MAGI_INVALID_ARGUMENT);
}

TEST(AttentionBackendAbi, BadTablesAndNamesAreRefused) {
  EXPECT_EQ(magi_attention_backend_unregister(nullptr), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "name is null; allowed: a valid address");
  TableLog log;
  magi_attention_backend table = table_over_cpu(log, "cpu");
  EXPECT_EQ(magi_attention_backend_register(&table), MAGI_INVALID_ARGUMENT) << "taken";
  table = table_over_cpu(log, "short");
  table.struct_size = 8;
  EXPECT_EQ(magi_attention_backend_register(&table), MAGI_INVALID_ARGUMENT);
  table = table_over_cpu(log, "short");
  table.limits.struct_size = 8;
  EXPECT_EQ(magi_attention_backend_register(&table), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_attention_backend_register(nullptr), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_attention_backend_unregister("nobody"), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_attention_get_limits("cpu", MAGI_CPU_DEVICE, nullptr), MAGI_INVALID_ARGUMENT);
  Problem call;
  call.inputs.backend = "nobody";
  const auto mask = mask_from({kRows, kRows, {}});
  EXPECT_EQ(magi_flex_attention_forward(mask.get(), &call.inputs, &call.result, nullptr),
            MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(log.num_destroys, 0) << "a refused table stays its owner's";
}

}  // namespace
}  // namespace magi::capi_test
