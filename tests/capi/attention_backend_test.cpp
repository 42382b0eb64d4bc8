// SPDX-License-Identifier: Apache-2.0
#include "magi/attention_backend.h"

#include <gtest/gtest.h>

#include <vector>

#include "capi/owned_handles.hpp"
#include "capi/problem.hpp"
#include "magi/attention.hpp"

namespace magi::capi_test {
namespace {

constexpr std::int64_t kRows = 3, kHeads = 2, kDim = 4;

/// Counts its calls and writes 7 into out.
struct Log {
  int num_forwards = 0;
  int num_destroys = 0;
  double scale = 0.0;
  std::vector<std::int32_t> slices;
};

std::int32_t plan(void* context, const magi_attention_problem* problem, void** /*handle*/) {
  auto& log = *static_cast<Log*>(context);
  log.slices.assign(problem->slices, problem->slices + 6 * problem->num_slices);
  return MAGI_OK;
}

std::int32_t forward(void* context, void* /*handle*/, const magi_attention_inputs* inputs,
                     const magi_attention_result* result, void* /*stream*/) {
  auto& log = *static_cast<Log*>(context);
  ++log.num_forwards;
  log.scale = inputs->softmax_scale;
  auto* out = static_cast<float*>(result->out->data);
  std::fill(out, out + kRows * kHeads * kDim, 7.0f);
  return MAGI_OK;
}

std::int32_t backward(void*, void*, const magi_attention_inputs*, const magi_attention_result*,
                      const magi_attention_gradients*, void*) {
  return MAGI_INTERNAL_ERROR;
}

void release(void*, void*) {}
const char* last_error(void*) { return "no gradients here"; }
void destroy(void* context) { ++static_cast<Log*>(context)->num_destroys; }

magi_attention_limits any_limits() {
  return {.struct_size = sizeof(magi_attention_limits),
          .min_dim_qk = 1,
          .max_dim_qk = 512,
          .dim_qk_multiple = 1,
          .min_dim_v = 1,
          .max_dim_v = 512,
          .dim_v_multiple = 4,
          .dtypes = 1 << MAGI_FLOAT32,
          .stride_bytes = 1};
}

magi_attention_backend table_of(Log& log, const char* name) {
  return {.struct_size = sizeof(magi_attention_backend),
          .context = &log,
          .name = name,
          .serves_cpu = 1,
          .serves_gpu = 0,
          .limits = any_limits(),
          .plan = plan,
          .forward = forward,
          .backward = backward,
          .release = release,
          .last_error = last_error,
          .destroy = destroy};
}

/// A call of one device; its tensors hold zeros.
struct Call {
  Array rows{{kRows, kHeads, kDim}}, out{{kRows, kHeads, kDim}}, lse{{kRows, kHeads}};
  Array dq{{kRows, kHeads, kDim}}, dk{{kRows, kHeads, kDim}}, dv{{kRows, kHeads, kDim}};
  magi_attention_inputs inputs{.struct_size = sizeof(inputs),
                               .q = &rows.tensor,
                               .k = &rows.tensor,
                               .v = &rows.tensor,
                               .softmax_scale = 0.25};
  magi_attention_result result{
      .struct_size = sizeof(result), .out = &out.tensor, .lse = &lse.tensor};
  magi_attention_gradients gradients{.struct_size = sizeof(gradients),
                                     .dout = &rows.tensor,
                                     .dq = &dq.tensor,
                                     .dk = &dk.tensor,
                                     .dv = &dv.tensor};
};

TEST(AttentionBackendAbi, AFlexCallRunsOnTheBackendItNames) {
  Log log;
  const magi_attention_backend table = table_of(log, "sevens");
  ASSERT_EQ(magi_attention_backend_register(&table), MAGI_OK) << magi_last_error_message();
  Call call;
  call.inputs.backend = "sevens";
  {
    const auto mask = mask_from({kRows, kRows, {{0, 3, 0, 3, -1, 0}}});
    ASSERT_EQ(magi_flex_attention_forward(mask.get(), &call.inputs, &call.result, nullptr), MAGI_OK)
        << magi_last_error_message();
    EXPECT_EQ(magi_flex_attention_backward(mask.get(), &call.inputs, &call.result, &call.gradients,
                                           nullptr),
              MAGI_INTERNAL_ERROR);
    EXPECT_STREQ(magi_last_error_message(), "backend sevens: no gradients here");
    EXPECT_EQ(magi_attention_backend_unregister("sevens"), MAGI_OK);
    EXPECT_EQ(log.num_destroys, 0) << "the mask keeps what was prepared";
    EXPECT_EQ(magi_flex_attention_forward(mask.get(), &call.inputs, &call.result, nullptr),
              MAGI_OK);
  }
  EXPECT_EQ(log.num_forwards, 2);
  EXPECT_EQ(log.scale, 0.25);
  EXPECT_EQ(log.slices, (std::vector<std::int32_t>{0, 3, 0, 3, -1, 0}));
  EXPECT_EQ(call.out.values[0], 7.0f);
  EXPECT_EQ(log.num_destroys, 1);
}

TEST(AttentionBackendAbi, LimitsComeBack) {
  magi_attention_limits limits{.struct_size = sizeof(limits)};
  ASSERT_EQ(magi_attention_get_limits(nullptr, MAGI_CPU_DEVICE, &limits), MAGI_OK);
  EXPECT_EQ(limits.dtypes, 15);
  EXPECT_EQ(limits.min_dim_qk, 1);
  EXPECT_EQ(limits.has_sink & limits.has_softcap & limits.has_max_logits & limits.has_dlse, 1);
  Log log;
  const magi_attention_backend table = table_of(log, "limited");
  ASSERT_EQ(magi_attention_backend_register(&table), MAGI_OK);
  ASSERT_EQ(magi_attention_get_limits("limited", MAGI_CPU_DEVICE, &limits), MAGI_OK);
  EXPECT_EQ(limits.max_dim_v, 512);
  EXPECT_EQ(limits.dim_v_multiple, 4);
  EXPECT_EQ(limits.has_sink, 0);
  EXPECT_EQ(magi_attention_backend_unregister("limited"), MAGI_OK);
  EXPECT_EQ(magi_attention_get_limits("limited", MAGI_CPU_DEVICE, &limits), MAGI_INVALID_ARGUMENT);
}

TEST(AttentionBackendAbi, BadTablesAndNamesAreRefused) {
  EXPECT_EQ(magi_attention_backend_unregister(nullptr), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "name is null; allowed: a valid address");
  Log log;
  magi_attention_backend table = table_of(log, "cpu");
  EXPECT_EQ(magi_attention_backend_register(&table), MAGI_INVALID_ARGUMENT) << "taken";
  table = table_of(log, "short");
  table.struct_size = 8;
  EXPECT_EQ(magi_attention_backend_register(&table), MAGI_INVALID_ARGUMENT);
  table = table_of(log, "short");
  table.limits.struct_size = 8;
  EXPECT_EQ(magi_attention_backend_register(&table), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_attention_backend_register(nullptr), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_attention_backend_unregister("nobody"), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_attention_get_limits("cpu", MAGI_CPU_DEVICE, nullptr), MAGI_INVALID_ARGUMENT);
  Call call;
  call.inputs.backend = "nobody";
  const auto mask = mask_from({kRows, kRows, {}});
  EXPECT_EQ(magi_flex_attention_forward(mask.get(), &call.inputs, &call.result, nullptr),
            MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(log.num_destroys, 0) << "a refused table stays its owner's";
}

}  // namespace
}  // namespace magi::capi_test
