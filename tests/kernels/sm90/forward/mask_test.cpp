// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <vector>

#include "kernels/schedule/host/split_rule.hpp"
#include "kernels/sm90/forward/case.hpp"
#include "support/gpu/gpu_test.hpp"

namespace magi::test {
namespace {

using ForwardMaskTest = GpuTest;
using ForwardWideMaskTest = GpuTest;

std::int32_t pick(RandomStream& random, const std::vector<std::int32_t>& values) {
  return values[static_cast<std::size_t>(
      random.between(0, static_cast<std::int32_t>(values.size()) - 1))];
}

/// Draws dims of q, k and of v.
using DrawDims = std::function<void(RandomStream&, ForwardCase&)>;

ForwardCase random_case(std::uint64_t seed, const DrawDims& draw_dims) {
  RandomStream random(seed);
  ForwardCase test;
  test.seed = seed;
  RandomMaskOptions options;
  options.max_rows_q = pick(random, {20, 150, 400});
  options.max_rows_k = pick(random, {20, 150, 700});
  options.has_free_bands = seed % 5 == 0;  // lists of the others are made on the device too
  test.mask = random_mask(random, options);
  test.type = random.chance(70) ? DType::BFloat16 : DType::Float16;
  test.heads_kv = pick(random, {1, 2});
  const std::int32_t group = pick(random, {1, 2, 3, 4, 8});
  test.heads_q = test.heads_kv * group;
  draw_dims(random, test);
  test.layout = static_cast<Layout>(random.between(0, 2));
  test.has_float_out = random.chance(25);
  test.is_merging = random.chance(20);
  test.has_max_logits = random.chance(25);
  test.num_sinks = random.chance(20) ? random.between(1, 8) : 0;
  test.params.sink_layout = random.chance(50) ? SinkLayout::SinkHead : SinkLayout::RowSinkHead;
  test.params.softcap = random.chance(20) ? 20.0 : 0.0;
  test.params.softmax_scale = random.chance(30) ? 0.3 : 0.0;
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

void check_random_masks(const DrawDims& draw_dims) {
  for_each_random_mask([&](int number) {
    check_forward(random_case(1000 + static_cast<std::uint64_t>(number), draw_dims));
  });
}

TEST_F(ForwardMaskTest, RandomMasksAgreeWithFloat64) {
  check_random_masks([](RandomStream& random, ForwardCase& test) {
    test.dim_qk = pick(random, {64, 128, 128, 80});
    test.dim_v = random.chance(80) ? test.dim_qk : pick(random, {32, 64, 128});
  });
}

TEST_F(ForwardWideMaskTest, Dim192MasksAgreeWithFloat64) {
  check_random_masks([](RandomStream& random, ForwardCase& test) {
    test.dim_qk = pick(random, {192, 192, 192, 136, 184});
    test.dim_v = pick(random, {128, 128, 128, 72, 8});
  });
}

TEST_F(ForwardWideMaskTest, Dim256MasksAgreeWithFloat64) {
  check_random_masks([](RandomStream& random, ForwardCase& test) {
    test.dim_qk = pick(random, {256, 256, 256, 200, 64});
    test.dim_v = random.chance(80) ? 256 : pick(random, {136, 192, 248});
  });
}

}  // namespace
}  // namespace magi::test
