// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/cpu/attention_case.hpp"

namespace magi::testing {
namespace {

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

}  // namespace
}  // namespace magi::testing
