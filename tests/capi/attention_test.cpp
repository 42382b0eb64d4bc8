// SPDX-License-Identifier: Apache-2.0
#include "magi/attention.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "capi/owned_handles.hpp"
#include "capi/problem.hpp"
#include "magi/mask_builders.hpp"

// What two_ranks.c leaves out: sinks, gradients through lse, gradients of undispatch, bad tensors.
namespace magi::capi_test {
namespace {

Mask causal_mask() {
  return mask_from_window({0, kRows}, {0, kRows}, {.left = -1, .right = 0}, kRows, kRows);
}

TEST(AttentionAbi, OneRankEqualsTheCallWithoutPlan) {
  const auto mask = mask_from(causal_mask());
  LoneRank rank(mask.get());
  const auto attention = made<magi_attention>(
      [&](auto** a) { return magi_attention_create(rank.plan.get(), rank.group.get(), a); });
  rank.group.reset();  // the attention object keeps the group
  Problem by_plan, by_mask;
  EXPECT_EQ(magi_attention_forward(attention.get(), &by_plan.inputs, &by_plan.result, nullptr),
            MAGI_OK);
  EXPECT_EQ(magi_attention_backward(attention.get(), &by_plan.inputs, &by_plan.result,
                                    &by_plan.gradients, nullptr),
            MAGI_OK);
  EXPECT_EQ(magi_flex_attention_forward(mask.get(), &by_mask.inputs, &by_mask.result, nullptr),
            MAGI_OK);
  EXPECT_EQ(magi_flex_attention_backward(mask.get(), &by_mask.inputs, &by_mask.result,
                                         &by_mask.gradients, nullptr),
            MAGI_OK);
  for (const auto array : {&Problem::out, &Problem::lse, &Problem::max_logits, &Problem::dq,
                           &Problem::dk, &Problem::dv, &Problem::dsink}) {
    EXPECT_EQ((by_plan.*array).values, (by_mask.*array).values);
    EXPECT_NE((by_plan.*array).values[0], 0.0f);
  }
}

TEST(AttentionAbi, TheModeOfTheBackwardIsZeroOrOne) {
  const auto mask = mask_from(causal_mask());
  Problem problem;
  for (const std::int32_t mode : {0, 1}) {
    problem.inputs.is_fast_backward = mode;
    EXPECT_EQ(magi_flex_attention_backward(mask.get(), &problem.inputs, &problem.result,
                                           &problem.gradients, nullptr),
              MAGI_OK);
  }
  problem.inputs.is_fast_backward = 2;
  EXPECT_EQ(magi_flex_attention_backward(mask.get(), &problem.inputs, &problem.result,
                                         &problem.gradients, nullptr),
            MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "inputs.is_fast_backward is 2; allowed: 0 or 1");
}

TEST(AttentionAbi, CallsByAPlanRefuseTheChoicesOfCallsWithoutOne) {
  const LoneRank rank(mask_from(causal_mask()).get());
  const auto attention = made<magi_attention>(
      [&](auto** a) { return magi_attention_create(rank.plan.get(), rank.group.get(), a); });
  Problem problem;
  const auto refusal = [&] {
    EXPECT_EQ(magi_attention_forward(attention.get(), &problem.inputs, &problem.result, nullptr),
              MAGI_INVALID_ARGUMENT);
    const std::string forward = magi_last_error_message();
    EXPECT_EQ(magi_attention_backward(attention.get(), &problem.inputs, &problem.result,
                                      &problem.gradients, nullptr),
              MAGI_INVALID_ARGUMENT);
    EXPECT_EQ(forward, magi_last_error_message());
    return forward;
  };
  problem.inputs.backend = "cpu";
  EXPECT_EQ(refusal(),
            "inputs.backend is cpu; allowed: null, as magi_attention_create_with takes the name");
  problem.inputs.backend = nullptr;
  problem.inputs.sm_margin = 4;
  EXPECT_EQ(refusal(),
            "inputs.sm_margin is 4; allowed: 0, as magi_attention_create_with takes exchange_sms");
}

TEST(AttentionAbi, OptionsAreCheckedWhenTheObjectIsMade) {
  magi_attention_options options{.struct_size = sizeof(options)};
  magi_attention_options_init(&options);
  EXPECT_EQ(options.allocator, nullptr);
  EXPECT_EQ(options.exchange_sms, 8);
  EXPECT_EQ(options.are_partials_rounded, 0);
  const LoneRank rank(mask_from(causal_mask()).get());
  const auto attention = made<magi_attention>([&](auto** a) {
    return magi_attention_create_with(rank.plan.get(), rank.group.get(), &options, a);
  });
  EXPECT_NE(attention, nullptr);
  const magi_device_allocator allocator{.struct_size = sizeof(allocator)};
  options.allocator = &allocator;
  magi_attention* refused = nullptr;
  EXPECT_EQ(magi_attention_create_with(rank.plan.get(), rank.group.get(), &options, &refused),
            MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(),
               "options.allocator is a table with a null entry; allowed: allocate and release");
  options.allocator = nullptr;
  options.are_partials_rounded = 2;
  EXPECT_EQ(magi_attention_create_with(rank.plan.get(), rank.group.get(), &options, &refused),
            MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "options.are_partials_rounded is 2; allowed: 0 or 1");
  options.are_partials_rounded = 0;
  options.backend = "nobody";
  EXPECT_EQ(magi_attention_create_with(rank.plan.get(), rank.group.get(), &options, &refused),
            MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(magi_last_error_message()).rfind("options.backend is nobody; ", 0), 0U);
}

TEST(AttentionAbi, FlexCallPassesEveryParameterOn) {
  Problem got, direct;
  const Mask mask = causal_mask();
  const auto handle = mask_from(mask);
  EXPECT_EQ(magi_flex_attention_forward(handle.get(), &got.inputs, &got.result, nullptr), MAGI_OK);
  const auto view = [](Array& array) {
    TensorView result{.data = array.values.data(), .rank = array.tensor.rank};
    std::copy_n(array.tensor.shape, 4, result.shape.begin());
    std::copy_n(array.tensor.stride, 4, result.stride.begin());
    return result;
  };
  attention_forward_cpu({.q = view(direct.q),
                         .k = view(direct.k),
                         .v = view(direct.v),
                         .slices = mask.slices,
                         .sink = view(direct.sink),
                         .out = view(direct.out),
                         .lse = view(direct.lse),
                         .max_logits = view(direct.max_logits),
                         .params = {.softmax_scale = 0.7, .softcap = 3.0}});
  EXPECT_EQ(got.out.values, direct.out.values);
  EXPECT_EQ(got.lse.values, direct.lse.values);
  EXPECT_EQ(got.max_logits.values, direct.max_logits.values);
}

TEST(AttentionAbi, BadTensorsAreNamed) {
  const auto mask = mask_from(causal_mask());
  Problem problem;
  const auto message = [&] {
    EXPECT_EQ(magi_flex_attention_forward(mask.get(), &problem.inputs, &problem.result, nullptr),
              MAGI_INVALID_ARGUMENT);
    return std::string(magi_last_error_message());
  };
  problem.q.tensor.dtype = 6;
  EXPECT_EQ(message(), "q.dtype is 6; allowed: 0 to 5");
  problem.q.tensor.dtype = MAGI_FLOAT32;
  problem.k.tensor.rank = 5;
  EXPECT_EQ(message(), "k.rank is 5; allowed: 1 to 4");
  problem.k.tensor.rank = 3;
  problem.inputs.v = nullptr;
  EXPECT_EQ(message(), "v is null; allowed: a valid address");
  problem.inputs.v = &problem.v.tensor;
  problem.inputs.sink_layout = 2;
  EXPECT_EQ(message(), "inputs.sink_layout is 2; allowed: 0 (sh) or 1 (ssh)");
  problem.inputs.sink_layout = MAGI_SINK_HEAD;
  problem.out.tensor.device = -2;
  EXPECT_EQ(message(), "out.device is -2; allowed: -1 (host memory) or a CUDA ordinal");
}

TEST(UndispatchAbi, HasBothGradients) {
  const std::int32_t ranks[] = {0, 1, 1, 0};
  const auto placement = made<magi_placement>(
      [&](auto** p) { return magi_placement_from_chunks(8, 2, 2, ranks, 4, p); });
  magi_comm_options options;
  magi_comm_options_init(&options);
  magi_communicator* handles[2] = {};
  ASSERT_EQ(magi_thread_group_create(2, &options, handles), MAGI_OK);
  const Owned<magi_communicator> first(handles[0]), second(handles[1]);
  Array shards[2][2] = {{Array{{4, 1}}, Array{{4, 1}}}, {Array{{4, 1}}, Array{{4, 1}}}};
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Array global({8, 1});
        for (std::size_t i = 0; i < 8; ++i) {
          global.values[i] = static_cast<float>(i * 10 + rank);
        }
        for (const std::int32_t mode : {MAGI_GRADIENT_REPLICATED, MAGI_GRADIENT_PARTIAL}) {
          const magi_undispatch_gradient gradient{
              .struct_size = sizeof(gradient),
              .global_gradient = &global.tensor,
              .local_gradient = &shards[rank][static_cast<std::size_t>(mode)].tensor,
              .mode = mode};
          EXPECT_EQ(magi_undispatch_backward(&gradient, placement.get(), handles[rank], nullptr),
                    MAGI_OK);
        }
      });
    }
  }
  EXPECT_EQ(shards[1][0].values, (std::vector<float>{21, 31, 41, 51}));
  EXPECT_EQ(shards[1][1].values, (std::vector<float>{41, 61, 81, 101}));
  const magi_undispatch_gradient bad{.struct_size = sizeof(bad), .mode = 2};
  EXPECT_EQ(magi_undispatch_backward(&bad, placement.get(), handles[0], nullptr),
            MAGI_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace magi::capi_test
