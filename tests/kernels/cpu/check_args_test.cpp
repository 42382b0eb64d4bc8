// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/check_args.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/host_array.hpp"
#include "magi/error.hpp"

namespace magi::testing {
namespace {

/// A sound forward and backward call: 6 queries, 8 keys, heads 4/2, dims 16/8.
struct SoundCall {
  HostArray q{DType::Float32, {6, 4, 16}, Layout::Packed};
  HostArray k{DType::Float32, {8, 2, 16}, Layout::Packed};
  HostArray v{DType::Float32, {8, 2, 8}, Layout::Packed};
  HostArray out{DType::Float32, {6, 4, 8}, Layout::Packed};
  HostArray lse{DType::Float32, {6, 4}, Layout::Packed};
  HostArray max_logits{DType::Float32, {4}, Layout::Packed};
  HostArray sink{DType::Float32, {3, 4}, Layout::Packed};
  HostArray row_sink{DType::Float32, {6, 3, 4}, Layout::Packed};
  HostArray half{DType::BFloat16, {6, 4, 8}, Layout::Packed};
  std::vector<BandSlice> slices = {{0, 6, 0, 8}};

  ForwardArgs forward() {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .slices = slices,
            .sink = sink.view(),
            .out = out.view(),
            .lse = lse.view(),
            .max_logits = max_logits.view()};
  }
  BackwardArgs backward() {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .slices = slices,
            .out = out.view(),
            .lse = lse.view(),
            .dout = out.view(),
            .dlse = lse.view(),
            .sink = sink.view(),
            .dq = q.view(),
            .dk = k.view(),
            .dv = v.view(),
            .dsink = sink.view()};
  }
};

template <typename Args>
std::string message_of(const Args& args) {
  try {
    cpu::check_args(args);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

std::string forward_message(const std::function<void(SoundCall&, ForwardArgs&)>& poison) {
  SoundCall call;
  ForwardArgs args = call.forward();
  poison(call, args);
  return message_of(args);
}

std::string backward_message(const std::function<void(SoundCall&, BackwardArgs&)>& poison) {
  SoundCall call;
  BackwardArgs args = call.backward();
  poison(call, args);
  return message_of(args);
}

using F = ForwardArgs&;
using B = BackwardArgs&;
using C = SoundCall&;

TEST(CpuArgs, SoundCallsPass) {
  EXPECT_EQ(forward_message([](C, F) {}), "accepted");
  EXPECT_EQ(backward_message([](C, B) {}), "accepted");
  EXPECT_EQ(forward_message([](C call, F args) {
              args.sink = call.row_sink.view();
              args.params.sink_layout = SinkLayout::RowSinkHead;
            }),
            "accepted");
}

TEST(CpuArgs, TypesAreNamed) {
  EXPECT_EQ(forward_message([](C, F args) { args.q.dtype = DType::Int32; }),
            "q.dtype is int32; allowed: float64, float32, float16, bfloat16");
  EXPECT_EQ(forward_message([](C, F args) { args.k.dtype = DType::Float64; }),
            "k.dtype is float64; allowed: float32");
  EXPECT_EQ(forward_message([](C, F args) { args.lse.dtype = DType::Float16; }),
            "lse.dtype is float16; allowed: float32");
  EXPECT_EQ(forward_message([](C, F args) { args.sink.dtype = DType::Float64; }),
            "sink.dtype is float64; allowed: float32");
  EXPECT_EQ(backward_message([](C, B args) { args.dk.dtype = DType::BFloat16; }),
            "dk.dtype is bfloat16; allowed: float32");
}

TEST(CpuArgs, UpdatedResultsAreFloat32) {
  const auto in_bfloat16 = [](auto& args) {
    args.q.dtype = args.k.dtype = args.v.dtype = DType::BFloat16;
  };
  EXPECT_EQ(forward_message([&](C call, F args) {
              in_bfloat16(args);
              args.out = call.half.view();
            }),
            "accepted");
  EXPECT_EQ(forward_message([&](C call, F args) {
              in_bfloat16(args);
              args.out = call.half.view();
              args.is_merging = true;
            }),
            "out.dtype is bfloat16; allowed: float32");
  EXPECT_EQ(backward_message([&](C, B args) {
              in_bfloat16(args);
              args.dq.dtype = DType::BFloat16;
              args.is_accumulating = true;
            }),
            "dq.dtype is bfloat16; allowed: float32");
}

TEST(CpuArgs, ShapesAreNamed) {
  EXPECT_EQ(forward_message([](C, F args) { args.q.rank = 2; }), "q.rank is 2; allowed: 3");
  EXPECT_EQ(forward_message([](C, F args) { args.q.shape[0] = -1; }),
            "q.shape[0] is -1; allowed: 0 to 1073741823");
  EXPECT_EQ(forward_message([](C, F args) { args.k.shape[1] = 0; }),
            "k.shape[1] is 0; allowed: 1 or more");
  EXPECT_EQ(forward_message([](C, F args) { args.k.shape[2] = 15; }),
            "k.shape[2] is 15; allowed: 16");
  EXPECT_EQ(forward_message([](C, F args) { args.v.shape[0] = 7; }), "v.shape[0] is 7; allowed: 8");
  EXPECT_EQ(forward_message([](C, F args) { args.out.shape[2] = 16; }),
            "out.shape[2] is 16; allowed: 8");
  EXPECT_EQ(forward_message([](C, F args) { args.max_logits.shape[0] = 2; }),
            "max_logits.shape[0] is 2; allowed: 4");
  EXPECT_EQ(backward_message([](C, B args) { args.dlse.shape[1] = 3; }),
            "dlse.shape[1] is 3; allowed: 4");
  EXPECT_EQ(backward_message([](C, B args) { args.dsink.shape[0] = 2; }),
            "dsink.shape[0] is 2; allowed: 3");
}

TEST(CpuArgs, HeadCountsMustDivide) {
  EXPECT_EQ(forward_message([](C, F args) { args.k.shape[1] = args.v.shape[1] = 3; }),
            "heads_q is 4; allowed: a multiple of heads_kv = 3");
}

TEST(CpuArgs, StridesAndDevicesAreNamed) {
  EXPECT_EQ(forward_message([](C, F args) { args.k.stride[2] = 2; }),
            "k.stride[2] is 2; allowed: 1 (the last axis is contiguous)");
  EXPECT_EQ(backward_message([](C, B args) { args.dv.stride[2] = 3; }),
            "dv.stride[2] is 3; allowed: 1 (the last axis is contiguous)");
  EXPECT_EQ(forward_message([](C, F args) { args.v.device = 0; }),
            "v.device is 0; allowed: -1 (the CPU)");
}

TEST(CpuArgs, SinkCountsAreOneToEight) {
  for (const std::int64_t count : {0, 9}) {
    EXPECT_EQ(forward_message([&](C, F args) { args.sink.shape[0] = count; }),
              "num_sinks (sink.shape[0]) is " + std::to_string(count) + "; allowed: 1 to 8");
  }
  EXPECT_EQ(backward_message([](C, B args) { args.dsink = {}; }),
            "dsink is missing; allowed: both of sink and dsink or none");
}

TEST(CpuArgs, MissingTensorsAreNamed) {
  const std::string expected = " is missing; allowed: a tensor with data";
  EXPECT_EQ(forward_message([](C, F args) { args.v.data = nullptr; }), "v" + expected);
  EXPECT_EQ(forward_message([](C, F args) { args.out.data = nullptr; }), "out" + expected);
  EXPECT_EQ(forward_message([](C, F args) { args.lse.data = nullptr; }), "lse" + expected);
  EXPECT_EQ(backward_message([](C, B args) { args.dout.data = nullptr; }), "dout" + expected);
  EXPECT_EQ(backward_message([](C, B args) { args.dq.data = nullptr; }), "dq" + expected);
  EXPECT_EQ(forward_message([](C, F args) { args.out = {}; }), "out.rank is 0; allowed: 3");
}

TEST(CpuArgs, ParametersAndSlicesAreChecked) {
  EXPECT_EQ(
      forward_message([](C, F args) { args.params = {.softmax_scale = 1e30, .softcap = 1e-30}; }),
      "softmax_scale / softcap is 1e+60; allowed: magnitudes from 1e-30 to 1e+30");
  EXPECT_EQ(forward_message([](C, F args) { args.params.softmax_scale = -1e31; }),
            "softmax_scale is -1e+31; allowed: 0 (the default) or magnitudes from 1e-30 to 1e+30");
  EXPECT_EQ(forward_message([](C, F args) { args.params.softcap = 1e-31; }),
            "softcap is 1e-31; allowed: 0 (off) or 1e-30 to 1e+30");
  EXPECT_EQ(forward_message([](C, F args) { args.params.softcap = -1; }),
            "softcap is -1; allowed: 0 (off) or a positive finite number");
  EXPECT_EQ(forward_message([](C, F args) { args.params.softmax_scale = HUGE_VAL; }),
            "softmax_scale is inf; allowed: a finite number");
  EXPECT_NE(forward_message([](C call, F args) {
              call.slices[0].k1 = 9;
              args.slices = call.slices;
            }),
            "accepted");
  EXPECT_EQ(forward_message([](C call, F args) {
              call.slices[0].d_min = std::numeric_limits<std::int32_t>::min();
              args.slices = call.slices;
            }).substr(0, 15),
            "slices[0].d_min");
}

TEST(CpuArgs, MorePairsThanAnInt64CountsAreRefused) {
  // No row is read: one element stands for all of them.
  float element = 0;
  TensorView rows = contiguous_view(&element, DType::Float32, {kMaxRows, 1, 1});
  rows.stride = {};
  const std::vector<BandSlice> slices(9, {0, kMaxRows, 0, kMaxRows});
  EXPECT_EQ(message_of(ForwardArgs{.q = rows, .k = rows, .v = rows, .slices = slices}),
            "area of the mask is more than 2^63 - 1 pairs; allowed: pairs that fit int64");
}

}  // namespace
}  // namespace magi::testing
