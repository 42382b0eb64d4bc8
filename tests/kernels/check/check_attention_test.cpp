// SPDX-License-Identifier: Apache-2.0
#include "kernels/check/check_attention.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/refusal.hpp"

// What callers of the C ABI cannot ask for; tests/data/attention_mistakes.tsv has the rest.
namespace magi::test {
namespace {

constexpr AttentionLimits kLimits{.dim_qk = {.min = 8, .max = 256, .multiple = 8},
                                  .dim_v = {.min = 8, .max = 256, .multiple = 8},
                                  .types = types_of({DType::Float16, DType::BFloat16}),
                                  .stride_bytes = 16,
                                  .has_float_outputs = true,
                                  .has_sink = true,
                                  .has_softcap = true,
                                  .has_max_logits = true,
                                  .has_dlse = true};
alignas(16) std::byte memory[16];  // no element is read

TensorView on_gpu(DType type, std::initializer_list<std::int64_t> shape) {
  TensorView tensor = contiguous_view(memory, type, shape);
  tensor.device = 0;
  return tensor;
}

const TensorView kQuery = on_gpu(DType::BFloat16, {64, 4, 128});
const TensorView kKey = on_gpu(DType::BFloat16, {64, 2, 128});
const TensorView kLse = on_gpu(DType::Float32, {64, 4});

ForwardArgs forward_args() {
  return {.q = kQuery, .k = kKey, .v = kKey, .out = kQuery, .lse = kLse};
}

BackwardArgs backward_args() {
  return {.q = kQuery,
          .k = kKey,
          .v = kKey,
          .out = kQuery,
          .lse = kLse,
          .dout = kQuery,
          .dq = kQuery,
          .dk = kKey,
          .dv = kKey};
}

template <typename Args>
std::string refusal_of(const Args& args, const AttentionLimits& limits = kLimits) {
  return testing::refusal_of([&] { check_attention(limits, args, 0); });
}

TEST(CheckAttention, EveryTensorIsLaidOutAsTheBackendAsks) {
  EXPECT_EQ(refusal_of(forward_args()), "accepted");
  EXPECT_EQ(refusal_of(backward_args()), "accepted");
  using Member = TensorView BackwardArgs::*;
  for (const auto& [text, tensor] :
       std::vector<std::pair<std::string, Member>>{{"q", &BackwardArgs::q},
                                                   {"k", &BackwardArgs::k},
                                                   {"v", &BackwardArgs::v},
                                                   {"out", &BackwardArgs::out},
                                                   {"dout", &BackwardArgs::dout},
                                                   {"dq", &BackwardArgs::dq},
                                                   {"dk", &BackwardArgs::dk},
                                                   {"dv", &BackwardArgs::dv}}) {
    const auto expect = [&, name = text, member = tensor](const auto& change, const char* told) {
      BackwardArgs args = backward_args();
      change(args.*member);
      EXPECT_EQ(refusal_of(args), name + told);
    };
    expect([](TensorView& t) { t.stride[1] = 129; },
           ".stride[1] is 129; allowed: multiples of 16 bytes from 0 to below 2^40 bytes");
    expect([](TensorView& t) { t.stride[2] = 2; }, ".stride[2] is 2; allowed: 1");
    expect([](TensorView& t) { t.device = 3; }, ".device is 3; allowed: 0 (that of the call)");
    expect([](TensorView& t) { t.data = nullptr; },
           ".data is null; allowed: the address of its elements");
    expect([](TensorView& t) { t.data = memory + 2; }, ".data mod 16 is 2; allowed: 0");
  }
}

TEST(CheckAttention, ResultsThatAreAddedToHaveTheTypeOfSums) {
  ForwardArgs forward = forward_args();
  forward.is_merging = true;
  EXPECT_EQ(refusal_of(forward), "out.dtype is bfloat16; allowed: float32");
  forward.out.dtype = DType::Float32;
  EXPECT_EQ(refusal_of(forward), "accepted");
  BackwardArgs backward = backward_args();
  backward.is_accumulating = true;
  EXPECT_EQ(refusal_of(backward), "dq.dtype is bfloat16; allowed: float32");
  backward.dq.dtype = backward.dk.dtype = backward.dv.dtype = DType::Float32;
  EXPECT_EQ(refusal_of(backward), "accepted");
}

TEST(CheckAttention, FloatOutputsAreReadWhereTheBackendCan) {
  BackwardArgs args = backward_args();
  args.dv.dtype = DType::Float16;
  EXPECT_EQ(refusal_of(args), "dv.dtype is float16; allowed: bfloat16, float32");
  args = backward_args();
  args.out.dtype = args.dout.dtype = DType::Float32;
  EXPECT_EQ(refusal_of(args), "accepted");
  AttentionLimits limits = kLimits;
  limits.has_float_outputs = false;
  EXPECT_EQ(refusal_of(args, limits), "out.dtype is float32; allowed: bfloat16");
}

TEST(CheckAttention, SinksComeWithTheirGradients) {
  const TensorView sink = on_gpu(DType::Float32, {2, 4});
  BackwardArgs args = backward_args();
  args.sink = sink;
  EXPECT_EQ(refusal_of(args), "dsink is missing; allowed: the gradient of sink");
  args.dsink = sink;
  args.dsink.stride[1] = 2;
  EXPECT_EQ(refusal_of(args), "dsink.stride[1] is 2; allowed: 1");
  AttentionLimits limits = kLimits;
  limits.has_spread_sinks = true;
  EXPECT_EQ(refusal_of(args, limits), "accepted");
  args.params.sink_layout = SinkLayout::RowSinkHead;
  args.sink = args.dsink = on_gpu(DType::Float32, {64, 8, 4});
  EXPECT_EQ(refusal_of(args), "accepted");
  args.sink.shape[0] = 63;
  EXPECT_EQ(refusal_of(args), "sink.shape is [63, 8, 4]; allowed: [64, 8, 4]");
  args.params.sink_layout = SinkLayout(2);
  EXPECT_EQ(refusal_of(args), "sink_layout is 2; allowed: 0 (sh) or 1 (ssh)");
}

TEST(CheckAttention, ProblemsNeedNoData) {
  const auto refusal = [](const auto& args) {
    return testing::refusal_of([&] { check_problem(kLimits, args); });
  };
  BackwardArgs args = backward_args();
  for (TensorView* tensor : {&args.q, &args.k, &args.v, &args.dout}) tensor->data = nullptr;
  EXPECT_EQ(refusal(args), "accepted");
  args.dout.shape[2] = 64;
  EXPECT_EQ(refusal(args), "dout.shape is [64, 4, 64]; allowed: [64, 4, 128]");
  args.q.shape[0] = kMaxRows + 1;
  EXPECT_EQ(refusal(args), "q.shape[0] is 1073741824; allowed: 0 to 1073741823");
  ForwardArgs forward = forward_args();
  forward.q.dtype = DType::Float32;
  EXPECT_EQ(refusal(forward), "q.dtype is float32; allowed: float16, bfloat16");
}

}  // namespace
}  // namespace magi::test
