// SPDX-License-Identifier: Apache-2.0
#include <tuple>
#include <vector>

#include "kernels/sm90/backward/case.hpp"
#include "kernels/sm90/shared_suite.hpp"
#include "support/masks.hpp"

namespace magi::test {
namespace {

struct Backward {
  using Case = BackwardCase;
  static constexpr std::int32_t kTileRows = 192, kMostPacked = 16;
  static void ask_for_more(BackwardCase& test) { test.has_dlse = true; }
  static void check(const BackwardCase& test) { check_backward(test); }
};
class BackwardTest
    : public GpuTest,
      public ::testing::WithParamInterface<std::tuple<DType, std::int32_t, const char*>> {
 protected:
  BackwardCase base() const {
    BackwardCase test;
    test.type = std::get<0>(GetParam());
    set_instance_dims(test, std::get<1>(GetParam()));
    test.backend = std::get<2>(GetParam());
    return test;
  }
};

MAGI_SHARED_TESTS(BackwardTest, Backward)

TEST_P(BackwardTest, RowsThatSeeNothingAddNothing) {
  BackwardCase test = base();
  test.mask = {400, 100, {}};
  test.num_sinks = 2;
  test.has_dlse = true;
  test.is_accumulating = true;
  check_backward(test);
  test.is_writing_keys = true;
  check_backward(test);
}

TEST_P(BackwardTest, EveryGroupOfHeads) {
  for (const auto& [heads_q, heads_kv] :
       std::vector<std::pair<std::int32_t, std::int32_t>>{{3, 3}, {16, 1}, {6, 2}, {5, 1}}) {
    BackwardCase test = base();
    test.heads_q = heads_q;
    test.heads_kv = heads_kv;
    test.mask = one_slice(150, 200, MaskType::Causal);
    check_backward(test);
  }
}

TEST_P(BackwardTest, EveryNumberOfHeadsPerItem) {
  for (const std::int32_t heads_per_item : {1, 2, 4, 8}) {
    BackwardCase test = base();
    test.heads_q = 8;
    test.mask = one_slice(200, 300, MaskType::Causal);
    test.tuning = {.packed_heads = 1, .heads_per_item = heads_per_item};
    check_backward(test);
  }
}

/// With few CTAs the kv heads of a k tile share a slot for their splits.
TEST_P(BackwardTest, SplitsOfManyHeadsShareSlots) {
  for (const std::int32_t num_ctas : {1, 2, 7, 40}) {
    BackwardCase test = base();
    test.heads_q = 10;
    test.heads_kv = 5;
    test.mask = one_slice(130, 300, MaskType::Causal);
    test.tuning = {.sm_margin = device_info(0).num_sms - num_ctas,
                   .packed_heads = 1,
                   .heads_per_item = 1,
                   .is_deterministic = num_ctas != 7};
    check_backward(test);
  }
}

TEST_P(BackwardTest, EveryWalkOfTheHeads) {
  for (const HeadWalk head_walk : {HeadWalk::Together, HeadWalk::InTurn}) {
    for (const bool is_deterministic : {true, false}) {
      BackwardCase test = base();
      test.heads_q = 6;
      test.mask = one_slice(200, 700, MaskType::Causal);
      test.tuning = {.packed_heads = 1,
                     .heads_per_item = 3,
                     .is_deterministic = is_deterministic,
                     .section_heads = 1,
                     .head_walk = head_walk};
      check_backward(test);
    }
  }
}

TEST_P(BackwardTest, ShortDocuments) {
  BackwardCase test = base();
  test.heads_q = 8;
  test.mask = testing::document_mask({3, 130, 1, 64, 128, 91});
  check_backward(test);
}

/// Whoever adds last to a sum writes rows of dq, in every type and layout, cut off at every edge.
TEST_P(BackwardTest, WindowsOfEveryLayoutAndTypeOfGradients) {
  for (const Layout layout : {Layout::Contiguous, Layout::PaddedRows, Layout::HeadMajor}) {
    for (const bool has_float_gradients : {false, true}) {
      BackwardCase test = base();
      test.mask = converted_window();
      test.dim_v = 8;  // float64 takes its time
      test.layout = layout;
      if (layout != Layout::Contiguous) test.dim_qk -= 24;
      test.has_float_gradients = has_float_gradients;
      test.is_accumulating = has_float_gradients && layout == Layout::PaddedRows;
      test.tuning.packed_heads = layout == Layout::HeadMajor ? 1 : 2;
      test.tuning.is_deterministic = layout == Layout::PaddedRows;
      check_backward(test);
    }
  }
}

TEST_P(BackwardTest, WindowsOfManyPackedHeads) {
  for (const std::int32_t packed_heads : {4, 16}) {
    BackwardCase test = base();
    if (packed_heads == 16 && test.dim_qk > 64) continue;
    test.heads_q = packed_heads;
    test.mask = converted_window();
    test.dim_v = 8;
    test.tuning = {.packed_heads = packed_heads, .is_deterministic = false};
    check_backward(test);
  }
}

TEST_P(BackwardTest, FloatTensorsAndAccumulation) {
  BackwardCase test = base();
  test.heads_q = 4;
  test.mask = one_slice(260, 400, MaskType::Causal);
  test.has_float_gradients = true;
  check_backward(test);
  test.has_float_out = true;
  check_backward(test);
  test.is_accumulating = true;
  test.num_sinks = 1;
  check_backward(test);
  test.is_writing_keys = true;
  check_backward(test);
  test.tuning = {.packed_heads = 1, .heads_per_item = 1};
  check_backward(test);
}

TEST_P(BackwardTest, StridedTensors) {
  for (const Layout layout : {Layout::PaddedRows, Layout::HeadMajor}) {
    BackwardCase test = base();
    test.heads_q = 4;
    test.heads_kv = 2;
    test.layout = layout;
    test.mask = one_slice(130, 270, MaskType::Causal);
    check_backward(test);
    test.has_float_out = test.has_float_gradients = true;
    check_backward(test);
  }
}

TEST_P(BackwardTest, FastSumsAgreeToo) {
  BackwardCase test = base();
  test.heads_q = 8;
  test.tuning.is_deterministic = false;
  test.mask = one_slice(400, 900, MaskType::Causal);
  check_backward(test);
}

/// Every row attends to one key, whose probability is 1 and whose gradient of the score is dlse:
/// all gradients are sums of integers, which float32 holds exactly.
class OneHot {
 public:
  OneHot(const BackwardCase& test, std::uint64_t seed)
      : test_(test), inputs_(test), outputs_(test) {
    RandomStream random(seed);
    fill_keys(random);
    choose_keys(random);
    for (GuardedTensor* tensor : {&inputs_.q, &inputs_.k, &inputs_.v, &inputs_.out, &inputs_.lse,
                                  &inputs_.dout, &inputs_.dlse}) {
      tensor->upload_sync();
    }
  }

  void check() {
    run_backward_sync(test_, inputs_, outputs_);
    ASSERT_EQ(values_of(outputs_.dv), expected_dv());
    ASSERT_EQ(values_of(outputs_.dk), expected_dk());
    ASSERT_EQ(values_of(outputs_.dq), expected_dq());
  }

  static constexpr double kScale = 8.0;

 private:
  std::int64_t kv_of(std::int64_t head) const { return head / (test_.heads_q / test_.heads_kv); }

  void fill_keys(RandomStream& random) {
    for (std::int64_t key = 0; key < inputs_.k.rows(); ++key) {
      for (std::int64_t head = 0; head < inputs_.k.heads(); ++head) {
        for (std::int64_t d = 0; d < test_.dim_qk; ++d) {
          inputs_.k.set(key, head, d, random.chance(50) ? 1 : -1);
        }
        for (std::int64_t d = 0; d < test_.dim_v; ++d) {
          inputs_.v.set(key, head, d, random.between(-9, 9));
        }
      }
    }
  }

  void choose_keys(RandomStream& random) {
    for (std::int64_t row = 0; row < inputs_.q.rows(); ++row) {
      const Range keys = visible_keys(test_.mask.slices.front(), static_cast<std::int32_t>(row));
      for (std::int64_t head = 0; head < test_.heads_q; ++head) {
        const std::int64_t key = random.between(keys.begin, keys.end - 1);
        chosen_.push_back(key);
        for (std::int64_t d = 0; d < test_.dim_qk; ++d) {
          inputs_.q.set(row, head, d, inputs_.k.get(key, kv_of(head), d));
        }
        for (std::int64_t d = 0; d < test_.dim_v; ++d) {
          inputs_.out.set(row, head, d, inputs_.v.get(key, kv_of(head), d));
          inputs_.dout.set(row, head, d, random.between(-9, 9));
        }
        inputs_.lse.set(row, head, 0, kScale * test_.dim_qk);
        inputs_.dlse.set(row, head, 0, random.between(-99, 99));
      }
    }
  }

  /// Adds `value(i, d)` of every (row, head) i to the chosen key's element d.
  template <typename Value>
  std::vector<double> sum_at_keys(std::int32_t dim, Value value) const {
    std::vector<double> sums(
        static_cast<std::size_t>(std::int64_t{test_.mask.rows_k} * test_.heads_kv * dim));
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / test_.heads_q;
      const auto head = static_cast<std::int64_t>(i) % test_.heads_q;
      const std::int64_t base = (chosen_[i] * test_.heads_kv + kv_of(head)) * dim;
      for (std::int64_t d = 0; d < dim; ++d) {
        sums[static_cast<std::size_t>(base + d)] += value(row, head, d);
      }
    }
    return sums;
  }

  std::vector<double> expected_dv() const {
    return sum_at_keys(test_.dim_v, [this](std::int64_t row, std::int64_t head, std::int64_t d) {
      return inputs_.dout.get(row, head, d);
    });
  }

  std::vector<double> expected_dk() const {
    return sum_at_keys(test_.dim_qk, [this](std::int64_t row, std::int64_t head, std::int64_t d) {
      return kScale * inputs_.dlse.get(row, head, 0) * inputs_.q.get(row, head, d);
    });
  }

  std::vector<double> expected_dq() const {
    std::vector<double> expected;
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / test_.heads_q;
      const auto head = static_cast<std::int64_t>(i) % test_.heads_q;
      for (std::int64_t d = 0; d < test_.dim_qk; ++d) {
        expected.push_back(kScale * inputs_.dlse.get(row, head, 0) *
                           inputs_.k.get(chosen_[i], kv_of(head), d));
      }
    }
    return expected;
  }

  BackwardCase test_;
  BackwardInputs inputs_;
  BackwardOutputs outputs_;
  std::vector<std::int64_t> chosen_;
};

TEST_P(BackwardTest, OneHotAttentionIsExact) {
  BackwardCase test = base();
  test.heads_q = 8;
  test.heads_kv = 2;
  test.has_float_gradients = true;
  test.has_dlse = true;
  test.params.softmax_scale = OneHot::kScale;
  for (const MaskType type : {MaskType::Full, MaskType::Causal}) {
    for (const std::int32_t packed_heads : {1, 4}) {
      for (const std::int32_t heads_per_item : {4, packed_heads}) {
        for (const bool is_deterministic : {true, false}) {
          SCOPED_TRACE(::testing::Message() << "packed " << packed_heads << " per item "
                                            << heads_per_item << (is_deterministic ? "" : " fast"));
          test.mask = one_slice(300, 999, type);
          test.tuning = {.packed_heads = packed_heads,
                         .heads_per_item = heads_per_item,
                         .is_deterministic = is_deterministic};
          OneHot(test, 5 + static_cast<std::uint64_t>(packed_heads)).check();
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Instances, BackwardTest,
                         ::testing::Combine(::testing::Values(DType::BFloat16, DType::Float16),
                                            ::testing::Values(64, 128, 192, 256),
                                            ::testing::Values("", "mma")));

}  // namespace
}  // namespace magi::test
