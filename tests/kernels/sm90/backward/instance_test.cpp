// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/sm90/backward/case.hpp"
#include "support/gpu/gpu_test.hpp"

// The same of every kernel: of each type and dim, with a softcap or not, with dQ's sums in the
// order of the list or not, of each backend.
namespace magi::test {
namespace {

class BackwardInstanceTest : public GpuTest,
                             public ::testing::WithParamInterface<
                                 std::tuple<DType, std::int32_t, bool, bool, const char*>> {
 protected:
  BackwardCase base() const {
    BackwardCase test;
    test.type = std::get<0>(GetParam());
    set_instance_dims(test, std::get<1>(GetParam()));
    if (std::get<2>(GetParam())) test.params.softcap = 15.0;
    test.tuning = {.packed_heads = 1, .is_deterministic = std::get<3>(GetParam())};
    test.backend = std::get<4>(GetParam());
    return test;
  }
};

std::string name_of(const ::testing::TestParamInfo<BackwardInstanceTest::ParamType>& info) {
  const auto& [type, dim, has_softcap, is_deterministic, backend] = info.param;
  return std::string(type == DType::BFloat16 ? "Bf16" : "Fp16") + "Dim" + std::to_string(dim) +
         (has_softcap ? "Softcap" : "") + (is_deterministic ? "InOrder" : "Fast") + backend;
}

/// One CTA walks all items and splits through its rings; two documents share a q tile.
TEST_P(BackwardInstanceTest, OneCtaWalksAllItems) {
  BackwardCase test = base();
  test.tuning.sm_margin = device_info(0).num_sms - 1;
  test.heads_q = 4;
  test.mask = {200,
               270,
               {band_slice({0, 90}, {0, 140}, MaskType::Full),
                band_slice({90, 190}, {100, 270}, MaskType::Causal),
                {.q0 = 20, .q1 = 80, .k0 = 0, .k1 = 130, .d_min = -30, .d_max = 40}}};
  check_backward(test);
  test.tuning.heads_per_item = 1;
  test.has_dlse = true;
  test.num_sinks = 1;
  check_backward(test);
  test.tuning.head_walk = HeadWalk::InTurn;
  test.tuning.heads_per_item = 2;
  test.has_float_out = true;
  test.is_accumulating = true;
  check_backward(test);
}

/// Every row attends to 256 keys, all alike because queries or keys are zero: probabilities are
/// 2^-8, gradients of scores integers times that, and all sums are exact in float32.
class UniformAttention {
 public:
  UniformAttention(const BackwardCase& test, bool has_queries)
      : test_(test), inputs_(test), outputs_(test) {
    RandomStream random(has_queries ? 11 : 12);
    fill(inputs_.q, random, has_queries ? 9 : 0);
    fill(inputs_.k, random, has_queries ? 0 : 9);
    fill(inputs_.v, random, 1);
    fill(inputs_.out, random, 1);
    fill(inputs_.dout, random, 1);
    fill(inputs_.dlse, random, 50);
    for (std::int64_t row = 0; row < inputs_.lse.rows(); ++row) {
      for (std::int64_t head = 0; head < test.heads_q; ++head) {
        inputs_.lse.set(row, head, 0, std::log(kKeys));
      }
    }
    inputs_.lse.upload_sync();
  }

  void check() {
    run_backward_sync(test_, inputs_, outputs_);
    add_pairs();
    ASSERT_EQ(values_of(outputs_.dv), dv_);
    ASSERT_EQ(values_of(outputs_.dk), dk_);
    ASSERT_EQ(values_of(outputs_.dq), dq_);
  }

  static constexpr double kKeys = 256;
  static constexpr double kScale = 0.5;

 private:
  static void fill(GuardedTensor& tensor, RandomStream& random, std::int32_t largest) {
    for (std::int64_t row = 0; row < tensor.rows(); ++row) {
      for (std::int64_t head = 0; head < tensor.heads(); ++head) {
        for (std::int64_t d = 0; d < tensor.dim(); ++d) {
          tensor.set(row, head, d, random.between(-largest, largest));
        }
      }
    }
    tensor.upload_sync();
  }

  void add_pairs() {
    q_ = values_of(inputs_.q);
    k_ = values_of(inputs_.k);
    v_ = values_of(inputs_.v);
    dout_ = values_of(inputs_.dout);
    out_ = values_of(inputs_.out);
    dq_.assign(q_.size(), 0.0);
    dk_.assign(k_.size(), 0.0);
    dv_.assign(v_.size(), 0.0);
    for (std::int32_t row = 0; row < test_.mask.rows_q; ++row) {
      for (std::int64_t head = 0; head < test_.heads_q; ++head) {
        for (const BandSlice& slice : test_.mask.slices) {
          const Range keys = visible_keys(slice, row);
          for (std::int32_t key = keys.begin; key < keys.end; ++key) add_pair(row, head, key);
        }
      }
    }
  }

  void add_pair(std::int64_t row, std::int64_t head, std::int64_t key) {
    const auto dim_qk = static_cast<std::size_t>(test_.dim_qk);
    const auto dim_v = static_cast<std::size_t>(test_.dim_v);
    const std::int64_t kv_head = head / (test_.heads_q / test_.heads_kv);
    const auto at_row = static_cast<std::size_t>(row * test_.heads_q + head);
    const auto at_key = static_cast<std::size_t>(key * test_.heads_kv + kv_head);
    double slope = inputs_.dlse.get(row, head, 0);
    for (std::size_t d = 0; d < dim_v; ++d) {
      const double dout = dout_[at_row * dim_v + d];
      slope += dout * (v_[at_key * dim_v + d] - out_[at_row * dim_v + d]);
      dv_[at_key * dim_v + d] += dout / kKeys;
    }
    slope *= kScale / kKeys;
    for (std::size_t d = 0; d < dim_qk; ++d) {
      dq_[at_row * dim_qk + d] += slope * k_[at_key * dim_qk + d];
      dk_[at_key * dim_qk + d] += slope * q_[at_row * dim_qk + d];
    }
  }

  BackwardCase test_;
  BackwardInputs inputs_;
  BackwardOutputs outputs_;
  std::vector<double> q_, k_, v_, out_, dout_, dq_, dk_, dv_;
};

TEST_P(BackwardInstanceTest, UniformAttentionIsExact) {
  BackwardCase test = base();
  test.has_float_gradients = true;
  test.has_dlse = true;
  test.params.softmax_scale = UniformAttention::kScale;
  // 128 keys of each slice, some of them twice.
  test.mask = {136,
               264,
               {{.q0 = 0, .q1 = 136, .k0 = 0, .k1 = 264, .d_min = 0, .d_max = 127},
                band_slice({0, 136}, {70, 198}, MaskType::Full)}};
  for (const std::int32_t heads_per_item : {2, 1}) {
    test.tuning.heads_per_item = heads_per_item;
    for (const bool has_queries : {true, false}) {
      SCOPED_TRACE(::testing::Message() << test << (has_queries ? " queries" : " keys"));
      UniformAttention(test, has_queries).check();
    }
  }
}

/// The CTA makes dq of many more sums than its rings hold. Windows are ordered in both modes.
TEST_P(BackwardInstanceTest, OneCtaConvertsManySums) {
  BackwardCase test = base();
  test.tuning.sm_margin = device_info(0).num_sms - 1;
  test.heads_q = 5;
  test.mask = converted_window();
  test.dim_v = 8;
  check_backward(test);
}

INSTANTIATE_TEST_SUITE_P(Instances, BackwardInstanceTest,
                         ::testing::Combine(::testing::Values(DType::BFloat16, DType::Float16),
                                            ::testing::Values(64, 128, 192, 256), ::testing::Bool(),
                                            ::testing::Bool(), ::testing::Values("", "mma")),
                         name_of);

}  // namespace
}  // namespace magi::test
