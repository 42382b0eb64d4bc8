// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <vector>

#include "kernels/sm90/backward/case.hpp"
#include "support/gpu/gpu_test.hpp"

namespace magi::test {
namespace {

using BackwardMaskTest = GpuTest;
using BackwardWideMaskTest = GpuTest;

std::int32_t pick(RandomStream& random, const std::vector<std::int32_t>& values) {
  return values[static_cast<std::size_t>(
      random.between(0, static_cast<std::int32_t>(values.size()) - 1))];
}

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

/// Draws dims of q, k and of v.
using DrawDims = std::function<void(RandomStream&, BackwardCase&)>;

BackwardCase random_case(std::uint64_t seed, const DrawDims& draw_dims) {
  RandomStream random(seed);
  BackwardCase test;
  test.seed = seed;
  RandomMaskOptions options;
  options.max_rows_q = pick(random, {20, 100, 250});
  options.max_rows_k = pick(random, {20, 150, 400});
  test.mask = random_mask(random, options);
  test.type = random.chance(70) ? DType::BFloat16 : DType::Float16;
  test.heads_kv = pick(random, {1, 1, 2, 2, 5});
  const std::int32_t group = pick(random, {1, 2, 3, 4, 8});
  test.heads_q = test.heads_kv * group;
  draw_dims(random, test);
  test.layout = static_cast<Layout>(random.between(0, 2));
  test.has_float_out = random.chance(15);
  test.has_float_gradients = random.chance(25);
  test.is_accumulating = random.chance(20);
  test.has_dlse = random.chance(40);
  test.num_sinks = random.chance(20) ? random.between(1, 8) : 0;
  test.params.sink_layout = random.chance(50) ? SinkLayout::SinkHead : SinkLayout::RowSinkHead;
  test.params.softcap = random.chance(20) ? 20.0 : 0.0;
  test.params.softmax_scale = random.chance(30) ? 0.3 : 0.0;
  test.tuning = random_tuning(random, group);
  test.is_writing_keys = random.chance(50);
  return test;
}

void check_random_masks(const DrawDims& draw_dims) {
  for_each_random_mask([&](int number) {
    check_backward(random_case(1000 + static_cast<std::uint64_t>(number), draw_dims));
  });
}

TEST_F(BackwardMaskTest, RandomMasksAgreeWithFloat64) {
  check_random_masks([](RandomStream& random, BackwardCase& test) {
    test.dim_qk = pick(random, {64, 64, 128, 80});
    test.dim_v = random.chance(80) ? test.dim_qk : pick(random, {32, 64, 128});
  });
}

TEST_F(BackwardWideMaskTest, Dim192MasksAgreeWithFloat64) {
  check_random_masks([](RandomStream& random, BackwardCase& test) {
    test.dim_qk = pick(random, {192, 192, 192, 136, 160});
    test.dim_v = pick(random, {128, 128, 128, 64, 8});
  });
}

TEST_F(BackwardWideMaskTest, Dim256MasksAgreeWithFloat64) {
  check_random_masks([](RandomStream& random, BackwardCase& test) {
    test.dim_qk = pick(random, {256, 256, 256, 200, 64});
    test.dim_v = random.chance(80) ? 256 : pick(random, {136, 192, 248});
  });
}

}  // namespace
}  // namespace magi::test
