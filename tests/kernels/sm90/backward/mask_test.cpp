// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "base/env.hpp"
#include "kernels/sm90/backward/case.hpp"
#include "kernels/sm90/shared_suite.hpp"

namespace magi::test {
namespace {

using BackwardMaskTest = GpuTest;
using BackwardWideMaskTest = GpuTest;
using BackwardMmaMaskTest = GpuTest;

BackwardTuning random_tuning(RandomStream& random, std::int32_t group) {
  BackwardTuning tuning;
  if (random.chance(60)) {
    std::vector<std::int32_t> packings;
    for (std::int32_t heads = 1; heads <= group && group % heads == 0; heads *= 2) {
      packings.push_back(heads);
    }
    tuning.packed_heads = pick(random, packings);
    std::vector<std::int32_t> per_item = {0};
    for (std::int32_t heads = tuning.packed_heads; heads <= group; heads += tuning.packed_heads) {
      if (group % heads == 0) per_item.push_back(heads);
    }
    tuning.heads_per_item = pick(random, per_item);
  }
  tuning.sm_margin = random.chance(30) ? pick(random, {1, 100, 124, 131}) : 0;
  tuning.is_deterministic = random.chance(60);
  tuning.section_heads = pick(random, {0, 1, 3});
  const std::int32_t walk = random.between(0, 2);
  tuning.head_walk = static_cast<HeadWalk>(walk);
  return tuning;
}

BackwardCase random_case(std::uint64_t seed, std::int32_t instance, const char* backend) {
  RandomStream random(seed);
  BackwardCase test;
  test.backend = backend;
  test.seed = seed;
  RandomMaskOptions options;
  options.max_rows_q = pick(random, {20, 100, 250});
  options.max_rows_k = pick(random, {20, 150, 400});
  draw_case(random, instance, options, test);
  test.has_float_gradients = random.chance(25);
  test.is_accumulating = random.chance(20);
  test.has_dlse = random.chance(40);
  test.tuning = random_tuning(random, test.heads_q / test.heads_kv);
  test.is_writing_keys = random.chance(50);
  return test;
}

/// Checks masks with heads of one of the `instances` each.
void check_random_masks(std::vector<std::int32_t> instances, const char* backend = "") {
  for_each_random_mask([&](int number) {
    const std::int32_t instance = instances[static_cast<std::size_t>(number) % instances.size()];
    check_backward(random_case(1000 + static_cast<std::uint64_t>(number), instance, backend));
  });
}

TEST_F(BackwardMaskTest, RandomMasksAgreeWithFloat64) { check_random_masks({128}); }
TEST_F(BackwardWideMaskTest, Dim192MasksAgreeWithFloat64) { check_random_masks({192}); }
TEST_F(BackwardWideMaskTest, Dim256MasksAgreeWithFloat64) { check_random_masks({256}); }
TEST_F(BackwardMmaMaskTest, RandomMasksAgreeWithFloat64) {
  std::vector<std::int32_t> instances = {128, 192, 256};
  if (shared_kib_env() < 163) instances.pop_back();  // as GPUs with so little have no room for it
  check_random_masks(instances, "mma");
}

}  // namespace
}  // namespace magi::test
