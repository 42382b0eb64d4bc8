// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/attention_case.hpp"

namespace magi::testing {
namespace {

using reference::DenseInput;
using reference::DenseOutput;

constexpr DType kFloatTypes[] = {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16};

TEST(CpuBackward, RandomCasesMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 160; ++seed) {
    RandomStream random(seed);
    const AttentionCase test = random_case(random, kFloatTypes[seed % 4], {});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + test.describe());
    const DenseOutput output = dense_forward(test.dense, test.counts());
    expect_backward_close(test, output, run_backward(test, output));
    if (HasFailure()) break;
  }
}

TEST(CpuBackward, LongerCasesOfManyTilesMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    RandomStream random(1000 + seed);
    const RandomMaskOptions options{.max_rows_q = 700, .max_rows_k = 700, .max_slices = 12};
    const AttentionCase test = random_case(random, kFloatTypes[seed % 4], options);
    SCOPED_TRACE("seed " + std::to_string(1000 + seed) + ": " + test.describe());
    const DenseOutput output = dense_forward(test.dense, test.counts());
    expect_backward_close(test, output, run_backward(test, output));
    if (HasFailure()) break;
  }
}

TEST(CpuBackward, ThePortableKernelsMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    RandomStream random(2000 + seed);
    const AttentionCase test = random_case(random, kFloatTypes[seed % 4], {});
    SCOPED_TRACE("seed " + std::to_string(2000 + seed) + ": " + test.describe());
    const DenseOutput output = dense_forward(test.dense, test.counts());
    expect_backward_close(test, output, run_backward(test, output, cpu::Isa::Portable));
    if (HasFailure()) break;
  }
}

TEST(CpuBackward, AccumulatingAddsToWhatIsThereUnlessKeysAreWritten) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    RandomStream random(3000 + seed);
    AttentionCase test = random_case(random, kFloatTypes[seed % 4], {});
    test.result_dtype = test.real();
    test.is_writing_keys = seed % 3 == 0;
    SCOPED_TRACE("seed " + std::to_string(3000 + seed) + ": " + test.describe());
    const DenseOutput output = dense_forward(test.dense, test.counts());
    const double start = 0.5;
    auto got = run_backward(test, output, cpu::Isa::Best, &start);
    for (auto* array : {&got.dq, &got.dk, &got.dv, &got.dsink}) {
      if (test.is_writing_keys && (array == &got.dk || array == &got.dv)) continue;
      for (double& value : *array) value -= start;
    }
    expect_backward_close(test, output, got);
    if (HasFailure()) break;
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
