// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/supplied_backend.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "base/half.hpp"
#include "kernels/attention/supplied_table.hpp"
#include "magi/error.hpp"
#include "support/refusal.hpp"

namespace magi::test {
namespace {

constexpr std::int64_t kRows = 37, kHeadsQ = 4, kHeadsKv = 2, kDim = 16;
constexpr double kSentinel = 3.0;

/// Tensors of one call; 16-bit ones are bfloat16.
class SuppliedBackendTest : public ::testing::Test {
 protected:
  SuppliedBackendTest() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (HostTensor<float>* tensor : {&q, &k, &v, &dout}) {
      for (float& value : tensor->elements()) {
        value = bfloat16_to_float(float_to_bfloat16(normal(random)));
      }
    }
  }

  std::shared_ptr<const AttentionBackend> make() { return make_supplied_backend(table); }
  ForwardArgs forward_args() const {
    ForwardArgs args{.q = q, .k = k, .v = v};
    args.out = out;
    args.lse = lse;
    return args;
  }
  BackwardArgs backward_args() const {
    BackwardArgs args{.q = q, .k = k, .v = v};
    args.out = out;
    args.lse = lse;
    args.dout = dout;
    args.dq = dq;
    args.dk = dk;
    args.dv = dv;
    return args;
  }
  /// Forward over all slices by the CPU backend.
  void attend_by_cpu(const TensorView& whole_out, const TensorView& whole_lse) {
    ForwardArgs args = forward_args();
    args.out = whole_out;
    args.lse = whole_lse;
    args.slices = slices;
    attention_forward_cpu(args);
  }
  static void run(const AttentionBackend& backend, ForwardArgs args,
                  std::span<const BandSlice> given) {
    args.slices = given;
    backend.prepare_forward(args, {})->run(args, {}, nullptr);
  }
  static void expect_close(HostTensor<float>& found, HostTensor<float>& wanted, double tolerance) {
    for (std::size_t i = 0; i < wanted.elements().size(); ++i) {
      const double a = found.elements()[i], b = wanted.elements()[i];
      if (a == b) continue;  // infinities too
      ASSERT_NEAR(a, b, tolerance) << "element " << i;
    }
  }
  std::string refusal_of(const std::function<void(ForwardArgs&)>& change) {
    ForwardArgs args = forward_args();
    change(args);
    return testing::refusal_of([&] { run(*make(), args, slices); });
  }

  HostTensor<float> q{kRows, kHeadsQ, kDim}, k{kRows, kHeadsKv, kDim}, v{kRows, kHeadsKv, kDim};
  HostTensor<float> out{kRows, kHeadsQ, kDim}, lse{kRows, kHeadsQ};
  HostTensor<float> dout{kRows, kHeadsQ, kDim};
  HostTensor<float> dq{kRows, kHeadsQ, kDim}, dk{kRows, kHeadsKv, kDim}, dv{kRows, kHeadsKv, kDim};
  /// Rows 0 to 3 see nothing of the first, rows from 30 on nothing of the second.
  std::vector<BandSlice> slices{{4, 37, 0, 20, -kBandInfinity, 0}, {0, 30, 20, 37, -5, 17}};
  TableLog log;
  magi_attention_backend table = table_over_cpu(log, "over cpu");
};

TEST_F(SuppliedBackendTest, WritesPlainResultsStraightIntoTheCallersTensors) {
  HostTensor<float> wanted_out{kRows, kHeadsQ, kDim}, wanted_lse{kRows, kHeadsQ};
  attend_by_cpu(wanted_out, wanted_lse);
  run(*make(), forward_args(), slices);
  expect_close(out, wanted_out, 0.0);
  expect_close(lse, wanted_lse, 0.0);
  EXPECT_EQ(log.num_plans, 1);
  EXPECT_EQ(log.num_forwards, 1);
}

TEST_F(SuppliedBackendTest, TheLibraryMergesIntoAnEarlierResult) {
  HostTensor<float> wanted_out{kRows, kHeadsQ, kDim}, wanted_lse{kRows, kHeadsQ};
  attend_by_cpu(wanted_out, wanted_lse);
  const auto backend = make();
  ForwardArgs args = forward_args();
  run(*backend, args, std::span(slices).first(1));
  args.is_merging = true;
  run(*backend, args, std::span(slices).last(1));
  expect_close(out, wanted_out, 1e-6);
  expect_close(lse, wanted_lse, 1e-5);
}

TEST_F(SuppliedBackendTest, TheLibraryMergesInFloat32AroundSixteenBits) {
  HostTensor<float> wanted_out{kRows, kHeadsQ, kDim}, wanted_lse{kRows, kHeadsQ};
  attend_by_cpu(wanted_out, wanted_lse);
  HostTensor<std::uint16_t> q16{kRows, kHeadsQ, kDim}, k16{kRows, kHeadsKv, kDim},
      v16{kRows, kHeadsKv, kDim};
  const auto round = [](HostTensor<float>& from, HostTensor<std::uint16_t>& to) {
    for (std::size_t i = 0; i < from.elements().size(); ++i) {
      to.elements()[i] = float_to_bfloat16(from.elements()[i]);
    }
  };
  round(q, q16);
  round(k, k16);
  round(v, v16);
  for (const std::int32_t has_float_outputs : {0, 1}) {
    table.limits.has_float_outputs = has_float_outputs;
    const auto backend = make();
    ForwardArgs args = forward_args();
    args.q = q16;
    args.k = k16;
    args.v = v16;
    run(*backend, args, std::span(slices).first(1));
    args.is_merging = true;
    run(*backend, args, std::span(slices).last(1));
    expect_close(out, wanted_out, has_float_outputs == 1 ? 1e-5 : 2e-2);
    expect_close(lse, wanted_lse, 1e-4);
  }
}

TEST_F(SuppliedBackendTest, MaxLogitsAreThoseOfAllCalls) {
  table.limits.has_max_logits = 1;
  HostTensor<float> found{kHeadsQ}, wanted{kHeadsQ};
  ForwardArgs args = forward_args();
  args.max_logits = wanted;
  args.slices = slices;
  attention_forward_cpu(args);
  args.max_logits = found;
  const auto backend = make();
  run(*backend, args, std::span(slices).first(1));
  args.is_merging = true;
  run(*backend, args, std::span(slices).last(1));
  expect_close(found, wanted, 0.0);
}

TEST_F(SuppliedBackendTest, OptionalTensorsWithoutDataAreNone) {
  const auto shape_of = [](TensorView tensor) {
    tensor.data = nullptr;
    return tensor;
  };
  HostTensor<float> sink{2, kHeadsQ}, logits{kHeadsQ};
  ForwardArgs args = forward_args();
  args.sink = shape_of(sink);
  args.max_logits = shape_of(logits);
  run(*make(), args, slices);
  args.is_merging = true;
  run(*make(), args, slices);
  BackwardArgs backward = backward_args();
  backward.slices = slices;
  backward.dlse = shape_of(lse);
  backward.sink = backward.dsink = shape_of(sink);
  backward.is_accumulating = true;
  make()->prepare_backward(backward, {})->run(backward, {}, nullptr);
  EXPECT_EQ(log.num_forwards + log.num_backwards, 3);
  EXPECT_EQ(log.num_optional, 0);
}

TEST_F(SuppliedBackendTest, TheLibraryAddsGradients) {
  attend_by_cpu(out, lse);
  HostTensor<float> wanted[] = {HostTensor<float>{kRows, kHeadsQ, kDim},
                                HostTensor<float>{kRows, kHeadsKv, kDim},
                                HostTensor<float>{kRows, kHeadsKv, kDim}};
  BackwardArgs args = backward_args();
  args.slices = slices;
  args.dq = wanted[0];
  args.dk = wanted[1];
  args.dv = wanted[2];
  attention_backward_cpu(args);
  for (const bool is_writing_keys : {false, true}) {
    for (HostTensor<float>* tensor : {&dq, &dk, &dv}) {
      std::ranges::fill(tensor->elements(), static_cast<float>(kSentinel));
    }
    args = backward_args();
    args.slices = slices;
    args.is_accumulating = true;
    args.is_writing_keys = is_writing_keys;
    make()->prepare_backward(args, {})->run(args, {}, nullptr);
    for (float& value : dq.elements()) value -= static_cast<float>(kSentinel);
    if (!is_writing_keys) {
      for (HostTensor<float>* tensor : {&dk, &dv}) {
        for (float& value : tensor->elements()) value -= static_cast<float>(kSentinel);
      }
    }
    expect_close(dq, wanted[0], 1e-5);
    expect_close(dk, wanted[1], is_writing_keys ? 0.0 : 1e-5);
    expect_close(dv, wanted[2], is_writing_keys ? 0.0 : 1e-5);
  }
}

TEST_F(SuppliedBackendTest, UsesTheCallersWorkspaceAndSaysWhereItIsTooSmall) {
  ForwardArgs args = forward_args();
  args.slices = slices;
  const auto prepared = make()->prepare_forward(args, {});
  run(*make(), args, slices);
  args.is_merging = true;
  std::vector<std::byte> memory(static_cast<std::size_t>(prepared->workspace_bytes()),
                                std::byte{0x5a});
  prepared->run(args, {memory.data(), prepared->workspace_bytes()}, nullptr);
  EXPECT_FALSE(std::ranges::all_of(memory, [](std::byte b) { return b == std::byte{0x5a}; }));
  const std::string told = testing::refusal_of([&] {
    prepared->run(args, {memory.data(), 16}, nullptr);
  });
  EXPECT_EQ(told.substr(0, 28), "workspace.size_bytes is 16; ");
}

TEST_F(SuppliedBackendTest, RefusesByNameWhatTheLimitsExclude) {
  HostTensor<double> wide{kRows, kHeadsQ, kDim};
  HostTensor<float> long_dim{kRows, kHeadsQ, 72}, sink{2, kHeadsQ}, logits{kHeadsQ};
  const auto set = [](auto field, const auto& value) {
    return [field, value](ForwardArgs& args) { args.*field = value; };
  };
  EXPECT_EQ(refusal_of(set(&ForwardArgs::q, TensorView(wide))),
            "q.dtype is float64; allowed: float32, bfloat16");
  EXPECT_EQ(refusal_of(set(&ForwardArgs::q, TensorView(long_dim))),
            "q.shape[2] is 72; allowed: multiples of 8 from 8 to 64");
  EXPECT_EQ(refusal_of(set(&ForwardArgs::sink, TensorView(sink))),
            "sink is given; allowed: none with this backend");
  EXPECT_EQ(refusal_of(set(&ForwardArgs::max_logits, TensorView(logits))),
            "max_logits is given; allowed: none with this backend");
  EXPECT_EQ(refusal_of([](ForwardArgs& args) { args.params.softcap = 2.0; }),
            "softcap is 2; allowed: 0 (off) with this backend");
  EXPECT_EQ(refusal_of([](ForwardArgs& args) { args.params.softmax_scale = -1.0; }),
            "softmax_scale is -1; allowed: 0 (the default) or 1e-30 to 1e+30");
  EXPECT_EQ(refusal_of([](ForwardArgs& args) { args.k.stride[2] = 2; }),
            "k.stride[2] is 2; allowed: 1");
  EXPECT_EQ(refusal_of([](ForwardArgs& args) { args.k.shape[1] = args.v.shape[1] = 3; }),
            "heads_q is 4; allowed: multiples of heads_kv, 3");
  EXPECT_EQ(log.num_forwards, 0);
}

TEST_F(SuppliedBackendTest, RefusesTensorsOfAnotherProblem) {
  ForwardArgs args = forward_args();
  args.slices = slices;
  const auto prepared = make()->prepare_forward(args, {});
  args.k = args.k.slice(0, 0, 20);
  args.v = args.v.slice(0, 0, 20);
  EXPECT_THROW(prepared->run(args, {}, nullptr), InvalidArgument);
  EXPECT_EQ(log.num_forwards, 0);
}

TEST_F(SuppliedBackendTest, ErrorsOfTheTableNameIt) {
  log.error = "no such key";
  EXPECT_EQ(refusal_of([](ForwardArgs&) {}), "backend over cpu: no such key");
}

TEST_F(SuppliedBackendTest, GivesBackHandlesAndContext) {
  {
    std::shared_ptr<const PreparedForward> prepared;
    {
      ForwardArgs args = forward_args();
      args.slices = slices;
      prepared = make()->prepare_forward(args, {});
    }
    EXPECT_EQ(log.num_destroys, 0) << "what was prepared needs the context";
    prepared->run(forward_args(), {}, nullptr);
  }
  EXPECT_EQ(log.num_releases, 1);
  EXPECT_EQ(log.num_destroys, 1);
}

TEST_F(SuppliedBackendTest, AnIncompleteTableIsRefused) {
  const auto is_refused = [this](auto change) {
    magi_attention_backend other = table;
    change(other);
    EXPECT_THROW(make_supplied_backend(other), InvalidArgument);
  };
  is_refused([](auto& t) { t.name = nullptr; });
  is_refused([](auto& t) { t.forward = nullptr; });
  is_refused([](auto& t) { t.serves_cpu = 0; });
  is_refused([](auto& t) { t.serves_cpu = 2; });
  is_refused([](auto& t) { t.serves_gpu = -1; });
  is_refused([](auto& t) { t.limits.has_sink = 2; });
  is_refused([](auto& t) { t.limits.has_any_scale = -1; });
  is_refused([](auto& t) { t.limits.dtypes = 0; });
  is_refused([](auto& t) { t.limits.max_dim_v = 4; });
  is_refused([](auto& t) { t.limits.stride_bytes = 0; });
  EXPECT_EQ(log.num_destroys, 0) << "a refused table stays its owner's";
}

}  // namespace
}  // namespace magi::test
