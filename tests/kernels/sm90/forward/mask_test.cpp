// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "kernels/schedule/host/split_rule.hpp"
#include "kernels/sm90/forward/case.hpp"
#include "kernels/sm90/shared_suite.hpp"

namespace magi::test {
namespace {

using ForwardMaskTest = GpuTest;
using ForwardWideMaskTest = GpuTest;
using ForwardMmaMaskTest = GpuTest;

ForwardCase random_case(std::uint64_t seed, std::int32_t instance, const char* backend) {
  RandomStream random(seed);
  ForwardCase test;
  test.backend = backend;
  test.seed = seed;
  RandomMaskOptions options;
  options.max_rows_q = pick(random, {20, 150, 400});
  options.max_rows_k = pick(random, {20, 150, 700});
  options.has_free_bands = seed % 5 == 0;  // lists of the others are made on the device too
  draw_case(random, instance, options, test);
  const std::int32_t group = test.heads_q / test.heads_kv;
  test.is_merging = random.chance(20);
  test.has_max_logits = random.chance(25);
  if (random.chance(60)) {
    std::vector<std::int32_t> allowed;
    for (std::int32_t heads = 1; heads <= group; heads *= 2) {
      if (group % heads == 0) allowed.push_back(heads);
    }
    test.tuning.packed_heads = pick(random, allowed);
  }
  test.tuning.sm_margin = random.chance(20) ? 130 : 0;  // few CTAs: many items each
  if (random.chance(30)) {                              // even short rows in splits
    test.tuning.max_pieces = pick(random, {16, 200, kMaxSplits});
    test.tuning.piece_cost = random.between(1, 4);
  }
  return test;
}

/// Checks masks with heads of one of the `instances` each.
void check_random_masks(std::vector<std::int32_t> instances, const char* backend = "") {
  for_each_random_mask([&](int number) {
    const std::int32_t instance = instances[static_cast<std::size_t>(number) % instances.size()];
    check_forward(random_case(1000 + static_cast<std::uint64_t>(number), instance, backend));
  });
}

TEST_F(ForwardMaskTest, RandomMasksAgreeWithFloat64) { check_random_masks({128}); }
TEST_F(ForwardWideMaskTest, Dim192MasksAgreeWithFloat64) { check_random_masks({192}); }
TEST_F(ForwardWideMaskTest, Dim256MasksAgreeWithFloat64) { check_random_masks({256}); }
TEST_F(ForwardMmaMaskTest, RandomMasksAgreeWithFloat64) {
  check_random_masks({128, 192, 256}, "mma");
}

}  // namespace
}  // namespace magi::test
