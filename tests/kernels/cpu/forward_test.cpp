// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/cpu/attention_case.hpp"

namespace magi::testing {
namespace {

constexpr DType kFloatTypes[] = {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16};

TEST(CpuForward, RandomCasesMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 160; ++seed) {
    RandomStream random(seed);
    const AttentionCase test = random_case(random, kFloatTypes[seed % 4], {});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + test.describe());
    expect_forward_close(test, run_forward(test));
    if (HasFailure()) break;
  }
}

TEST(CpuForward, LongerCasesOfManyTilesMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    RandomStream random(1000 + seed);
    const RandomMaskOptions options{.max_rows_q = 700, .max_rows_k = 700, .max_slices = 12};
    const AttentionCase test = random_case(random, kFloatTypes[seed % 4], options);
    SCOPED_TRACE("seed " + std::to_string(1000 + seed) + ": " + test.describe());
    expect_forward_close(test, run_forward(test));
    if (HasFailure()) break;
  }
}

TEST(CpuForward, ThePortableKernelsMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    RandomStream random(2000 + seed);
    const AttentionCase test = random_case(random, kFloatTypes[seed % 4], {});
    SCOPED_TRACE("seed " + std::to_string(2000 + seed) + ": " + test.describe());
    expect_forward_close(test, run_forward(test, cpu::Isa::Portable));
    if (HasFailure()) break;
  }
}

/// Slices in random parts, one call each.
TEST(CpuForward, MergingCallsEqualOneCall) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    RandomStream random(3000 + seed);
    AttentionCase test = random_case(random, kFloatTypes[seed % 4], {});
    test.result_dtype = test.real();
    SCOPED_TRACE("seed " + std::to_string(3000 + seed) + ": " + test.describe());
    std::vector<std::vector<BandSlice>> parts(static_cast<std::size_t>(random.between(2, 4)));
    for (const BandSlice& slice : test.mask.slices) {
      const auto last = static_cast<std::int32_t>(parts.size()) - 1;
      parts[static_cast<std::size_t>(random.between(0, last))].push_back(slice);
    }
    const std::size_t sink_part = random.chance(50) ? 0 : parts.size() - 1;
    expect_forward_close(test, run_merged(test, parts, sink_part));
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace magi::testing
