// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/attention_case.hpp"
#include "support/random_streams.hpp"

namespace magi::testing {
namespace {

using reference::DenseInput;
using reference::DenseOutput;

void expect_random_cases(std::uint64_t count, const RandomMaskOptions& options = {},
                         cpu::Isa isa = cpu::Isa::Best) {
  for (RandomStream& random : RandomStreams(count)) {
    const AttentionCase test = random_case(random, any_float_type(random), options);
    SCOPED_TRACE(test.describe());
    const DenseOutput output = dense_forward(test.dense, test.counts());
    expect_backward_close(test, output, run_backward(test, output, isa));
  }
}

TEST(CpuBackward, RandomCasesMatchTheReference) { expect_random_cases(160); }

TEST(CpuBackward, LongerCasesOfManyTilesMatchTheReference) {
  expect_random_cases(12, {.max_rows_q = 700, .max_rows_k = 700, .max_slices = 12});
}

TEST(CpuBackward, ThePortableKernelsMatchTheReference) {
  expect_random_cases(60, {}, cpu::Isa::Portable);
}

TEST(CpuBackward, AccumulatingAddsToWhatIsThereUnlessKeysAreWritten) {
  for (RandomStream& random : RandomStreams(40)) {
    AttentionCase test = random_case(random, any_float_type(random), {});
    test.result_dtype = test.real();
    test.is_writing_keys = random.chance(33);
    SCOPED_TRACE(test.describe());
    const DenseOutput output = dense_forward(test.dense, test.counts());
    const double start = 0.5;
    auto got = run_backward(test, output, cpu::Isa::Best, &start);
    for (auto* array : {&got.dq, &got.dk, &got.dv, &got.dsink}) {
      if (test.is_writing_keys && (array == &got.dk || array == &got.dv)) continue;
      for (double& value : *array) value -= start;
    }
    expect_backward_close(test, output, got);
  }
}

/// A bf16 case whose logits reach about `largest`: queries times a power of two, and the sinks of
/// a fourth of the cases among the largest logits.
AttentionCase huge_case(RandomStream& random, double largest) {
  AttentionCase test = random_case(random, DType::BFloat16, {.max_rows_q = 90, .max_rows_k = 90});
  DenseInput& in = test.dense;
  test.has_huge_logits = true;
  in.params = {.sink_layout = in.params.sink_layout};
  const double factor = std::exp2(std::floor(std::log2(largest / 3)));
  for (double& value : in.q) value *= factor;
  const double sink_factor = random.chance(50) ? factor : 1;
  for (double& value : in.sink) value *= sink_factor;
  return test;
}

TEST(CpuBackward, HugeLogitsKeepTheRuleFromForwardToBackward) {
  std::uint64_t seed = 4000;
  for (const double largest : {1e6, 2e7, 1e8, 1e9}) {
    for (int i = 0; i < 24; ++i, ++seed) {
      RandomStream random(seed);
      const AttentionCase test = huge_case(random, largest);
      SCOPED_TRACE("seed " + std::to_string(seed) + ", logits of " + std::to_string(largest) +
                   ": " + test.describe());
      const cpu::Isa isa = i % 4 == 0 ? cpu::Isa::Portable : cpu::Isa::Best;
      const ForwardResult forward = run_forward(test, isa);
      const DenseOutput output{.out = forward.out, .lse = forward.lse, .max_logits = {}};
      expect_backward_close(test, dense_forward(test.dense, test.counts()),
                            run_backward(test, output, isa));
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace magi::testing
