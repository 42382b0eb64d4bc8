// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/attention_case.hpp"
#include "support/random_streams.hpp"

namespace magi::testing {
namespace {

void expect_random_cases(std::uint64_t count, const RandomMaskOptions& options = {},
                         cpu::Isa isa = cpu::Isa::Best) {
  for (RandomStream& random : RandomStreams(count)) {
    const AttentionCase test = random_case(random, any_float_type(random), options);
    SCOPED_TRACE(test.describe());
    expect_forward_close(test, run_forward(test, isa));
  }
}

TEST(CpuForward, RandomCasesMatchTheReference) { expect_random_cases(160); }

TEST(CpuForward, LongerCasesOfManyTilesMatchTheReference) {
  expect_random_cases(16, {.max_rows_q = 700, .max_rows_k = 700, .max_slices = 12});
}

TEST(CpuForward, ThePortableKernelsMatchTheReference) {
  expect_random_cases(60, {}, cpu::Isa::Portable);
}

/// Slices in random parts, one call each.
TEST(CpuForward, MergingCallsEqualOneCall) {
  for (RandomStream& random : RandomStreams(60)) {
    AttentionCase test = random_case(random, any_float_type(random), {});
    test.result_dtype = test.real();
    SCOPED_TRACE(test.describe());
    std::vector<std::vector<BandSlice>> parts(static_cast<std::size_t>(random.between(2, 4)));
    for (const BandSlice& slice : test.mask.slices) {
      const auto last = static_cast<std::int32_t>(parts.size()) - 1;
      parts[static_cast<std::size_t>(random.between(0, last))].push_back(slice);
    }
    const std::size_t sink_part = random.chance(50) ? 0 : parts.size() - 1;
    expect_forward_close(test, run_merged(test, parts, sink_part));
  }
}

/// A row whose sink is infinite, or so large that it is in base 2, has no weight left for keys.
TEST(CpuForward, InfiniteSinksTakeAllWeight) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (RandomStream& random : RandomStreams(24)) {
    AttentionCase test = random_case(random, any_float_type(random), {});
    test.result_dtype = test.real();
    reference::DenseInput& in = test.dense;
    in.num_sinks = random.between(1, 3);
    in.params.sink_layout = SinkLayout::SinkHead;
    in.sink.assign(static_cast<std::size_t>(in.num_sinks * in.heads_q), 0.5);
    const double large = test.real() == DType::Float64 ? 1.7e308 : 3e38;
    const auto last = in.sink.size() - 1;
    in.sink[last] = random.chance(50) ? kInfinity : large;  // of the last head
    in.sink[last - static_cast<std::size_t>(random.between(0, in.num_sinks - 1) * in.heads_q)] =
        kInfinity;
    SCOPED_TRACE(test.describe());
    const std::vector<std::vector<BandSlice>> parts{test.mask.slices, {}, test.mask.slices};
    const auto result = run_merged(test, parts, static_cast<std::size_t>(random.between(0, 2)));
    for (std::size_t i = 0; i < result.lse.size(); ++i) {
      const bool is_last =
          i % static_cast<std::size_t>(in.heads_q) == static_cast<std::size_t>(in.heads_q) - 1;
      EXPECT_EQ(result.lse[i] == kInfinity, is_last) << "row " << i;
    }
    const auto dim = static_cast<std::size_t>(in.dim_v);
    const auto row = dim * static_cast<std::size_t>(in.heads_q);
    for (std::size_t i = 0; i < result.out.size(); ++i) {
      ASSERT_TRUE(std::isfinite(result.out[i])) << i;
      if (i % row >= row - dim) {
        ASSERT_EQ(result.out[i], 0.0) << i;
      }
    }
    const auto gradients = run_backward(test, {result.out, result.lse, {}});
    for (const auto* array : {&gradients.dq, &gradients.dk, &gradients.dv, &gradients.dsink}) {
      for (const double value : *array) ASSERT_TRUE(std::isfinite(value));
    }
    EXPECT_EQ(gradients.dsink[last], 0.0);
    const auto query = static_cast<std::size_t>(in.dim_qk);
    for (std::size_t i = 0; i < gradients.dq.size(); ++i) {
      const auto place = i % (query * static_cast<std::size_t>(in.heads_q));
      if (place >= query * static_cast<std::size_t>(in.heads_q - 1)) {
        ASSERT_EQ(gradients.dq[i], 0.0) << i;
      }
    }
  }
}

}  // namespace
}  // namespace magi::testing
