// SPDX-License-Identifier: Apache-2.0
#include <tuple>
#include <vector>

#include "kernels/attention/backend.hpp"
#include "kernels/sm90/forward/case.hpp"
#include "kernels/sm90/shared_suite.hpp"

namespace magi::test {
namespace {

struct Forward {
  using Case = ForwardCase;
  static constexpr std::int32_t kTileRows = 256, kMostPacked = 8;
  static void ask_for_more(ForwardCase& test) { test.has_max_logits = true; }
  static void check(const ForwardCase& test) { check_forward(test); }
};
using Instance = std::tuple<DType, InstanceDims, const char*>;  ///< and the backend

class ForwardTest : public GpuTest, public ::testing::WithParamInterface<Instance> {
 protected:
  ForwardCase base() const {
    ForwardCase test;
    test.type = std::get<0>(GetParam());
    test.dim_qk = std::get<1>(GetParam()).qk;
    test.dim_v = std::get<1>(GetParam()).v;
    test.backend = std::get<2>(GetParam());
    return test;
  }
};

MAGI_SHARED_TESTS(ForwardTest, Forward)

/// Items follow each other, splits too, through the rings of one CTA, for all feature sets.
TEST_P(ForwardTest, OneCtaWalksAllItems) {
  ForwardCase test = base();
  test.tuning.sm_margin = device_info(0).num_sms - 1;
  test.tuning.packed_heads = 1;
  test.mask = {300,
               260,
               {{.q0 = 0, .q1 = 190, .k0 = 0, .k1 = 260, .d_min = -149, .d_max = 5},
                {.q0 = 150, .q1 = 260, .k0 = 90, .k1 = 250, .d_min = -90, .d_max = 40}}};
  check_forward(test);
  test.has_float_out = true;
  check_forward(test);
  test.is_merging = true;
  test.num_sinks = 1;
  check_forward(test);
  test.has_max_logits = true;
  check_forward(test);
  test.tuning.max_pieces = 20;
  test.tuning.piece_cost = 1;
  check_forward(test);
}

/// A cap far above the scores is as good as none.
TEST_P(ForwardTest, SoftcapsMayBeLarge) {
  ForwardCase test = base();
  test.heads_q = 4;
  test.mask = one_slice(300, 300, MaskType::Causal);
  test.magnitude = 2.0;
  test.params.softcap = 1e6;
  check_forward(test);
}

TEST_P(ForwardTest, FloatOutAndMergingIntoIt) {
  ForwardCase test = base();
  test.mask = {260,
               400,
               {band_slice({0, 260}, {0, 190}, MaskType::Full),
                band_slice({0, 130}, {190, 400}, MaskType::Causal)}};
  test.has_float_out = true;
  check_forward(test);
  test.is_merging = true;
  test.has_max_logits = true;
  test.num_sinks = 1;
  check_forward(test);
}

/// Every row attends to exactly one key: the scores of all others underflow to probability 0, so
/// out must be that key's row of V bit for bit.
void check_one_hot(const ForwardCase& base, std::uint64_t seed) {
  ForwardCase test = base;
  test.seed = seed;
  RandomStream random(seed);
  const std::int32_t rows = test.mask.rows_q;
  GuardedTensor q(test.type, rows, test.heads_q, test.dim_qk);
  GuardedTensor k(test.type, test.mask.rows_k, test.heads_kv, test.dim_qk);
  GuardedTensor v(test.type, test.mask.rows_k, test.heads_kv, test.dim_v);
  GuardedTensor out(test.has_float_out ? DType::Float32 : test.type, rows, test.heads_q,
                    test.dim_v);
  GuardedTensor max_logits(DType::Float32, test.heads_q, 1, 1);
  GuardedTensor lse(DType::Float32, rows, test.heads_q, 1);
  for (std::int64_t key = 0; key < k.rows(); ++key) {
    for (std::int64_t head = 0; head < k.heads(); ++head) {
      for (std::int64_t d = 0; d < k.dim(); ++d) k.set(key, head, d, random.chance(50) ? 1 : -1);
      for (std::int64_t d = 0; d < v.dim(); ++d) v.set(key, head, d, random.between(-99, 99));
    }
  }
  std::vector<std::int64_t> chosen;
  for (std::int64_t row = 0; row < rows; ++row) {
    const Range keys = visible_keys(test.mask.slices.front(), static_cast<std::int32_t>(row));
    for (std::int64_t head = 0; head < q.heads(); ++head) {
      chosen.push_back(random.between(keys.begin, keys.end - 1));
      const std::int64_t kv_head = head / (test.heads_q / test.heads_kv);
      for (std::int64_t d = 0; d < q.dim(); ++d) {
        // The chosen key's score is a power of two, so that its exponent is exactly 0.
        const double weight = q.dim() == 192 && d >= 128 ? 2 : 1;
        q.set(row, head, d, weight * k.get(chosen.back(), kv_head, d));
      }
    }
  }
  for (GuardedTensor* tensor : {&q, &k, &v, &out, &lse, &max_logits}) tensor->upload_sync();
  ForwardArgs args{.q = q.view(), .k = k.view(), .v = v.view(), .slices = test.mask.slices};
  args.out = out.view();
  args.lse = lse.view(2);
  if (test.has_max_logits) args.max_logits = max_logits.view(1);
  args.params.softmax_scale = 16.0;
  find_backend(test.backend, 0)->prepare_forward(args, test.tuning)->run(args, {}, nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  out.download_sync();
  std::size_t i = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < q.heads(); ++head, ++i) {
      for (std::int64_t d = 0; d < v.dim(); ++d) {
        ASSERT_EQ(out.get(row, head, d), v.get(chosen[i], head / (test.heads_q / test.heads_kv), d))
            << "row " << row << " head " << head << " dim " << d;
      }
    }
  }
}

TEST_P(ForwardTest, OneHotAttentionIsExact) {
  ForwardCase test = base();
  test.heads_q = 8;
  test.heads_kv = 2;
  for (const MaskType type : {MaskType::Full, MaskType::Causal}) {
    for (const std::int32_t packed_heads : {1, 4}) {
      test.mask = one_slice(500, 1999, type);
      test.tuning.packed_heads = packed_heads;
      check_one_hot(test, 5 + static_cast<std::uint64_t>(packed_heads));
    }
  }
  // The kernels for any out and for everything, and splits.
  test.has_float_out = true;
  check_one_hot(test, 21);
  test.has_max_logits = true;
  check_one_hot(test, 22);
  test.has_float_out = false;
  test.tuning.max_pieces = 1000;
  test.tuning.piece_cost = 2;
  check_one_hot(test, 23);
}

INSTANTIATE_TEST_SUITE_P(Instances, ForwardTest,
                         ::testing::Combine(::testing::Values(DType::BFloat16, DType::Float16),
                                            forward_dims(), ::testing::Values("", "mma")));

}  // namespace
}  // namespace magi::test
