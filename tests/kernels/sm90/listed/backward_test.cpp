// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "base/random.hpp"
#include "kernels/sm90/listed/case.hpp"
#include "magi/error.hpp"
#include "support/gpu/gpu_test.hpp"

namespace magi::test {
namespace {

class ListedBackwardTest : public GpuTest,
                           public ::testing::WithParamInterface<std::tuple<DType, int>> {
 protected:
  ListedCase base(std::int32_t heads) const {
    ListedCase test;
    test.type = std::get<0>(GetParam());
    test.dim_qk = test.dim_v = std::get<1>(GetParam());
    test.heads_q = heads;
    return test;
  }
};

TEST_P(ListedBackwardTest, HeadsOfAKvHead) {
  for (const std::int32_t heads : {1, 8, 16, 63, 64, 65, 127, 128, 129, 200}) {
    check_listed_backward(base(heads));
  }
}

TEST_P(ListedBackwardTest, LengthsAroundTiles) {
  for (const std::int32_t entries : {1, 63, 64, 65, 128, 700}) {
    for (const std::int32_t heads : {4, 128}) {
      ListedCase test = base(heads);
      test.entries = entries;
      check_listed_backward(test);
      test.has_full_lists = true;
      check_listed_backward(test);
    }
  }
}

TEST_P(ListedBackwardTest, NothingToSee) {
  for (const std::int32_t heads : {4, 128}) {
    ListedCase test = base(heads);
    test.entries = 0;
    check_listed_backward(test);
    test.num_sinks = 2;
    check_listed_backward(test);
    test.entries = 30;
    test.rows_k = 0;
    check_listed_backward(test);
    test.rows_q = 0;
    check_listed_backward(test);
    test.params.sink_layout = SinkLayout::RowSinkHead;
    check_listed_backward(test);
  }
}

/// Only their first one is a block, and what lies behind the keys is not walked.
TEST_P(ListedBackwardTest, BlocksLongerThanTheKeys) {
  ListedCase test = base(16);
  test.entries = 3;
  test.block_keys = kMaxRows;
  check_listed_forward(test);
  check_listed_backward(test);
}

/// Items follow each other through the rings of one CTA or two, and add to the same keys.
TEST_P(ListedBackwardTest, OneMultiprocessorWalksAllItems) {
  for (const std::int32_t heads : {12, 140}) {
    ListedCase test = base(heads);
    test.heads_kv = 2;
    test.rows_q = 23;
    test.sm_margin = device_info(0).num_sms - 1;
    check_listed_backward(test);
    test.entries = 20;
    check_listed_backward(test);
  }
}

TEST_P(ListedBackwardTest, SoftcapSinksAndTheGradientOfLse) {
  for (const std::int32_t heads : {8, 128}) {
    ListedCase test = base(heads);
    test.num_sinks = 3;
    test.has_dlse = true;
    check_listed_backward(test);
    test.params.sink_layout = SinkLayout::RowSinkHead;
    check_listed_backward(test);
    test.magnitude = 2.0;
    test.params.softcap = 15.0;
    test.params.softmax_scale = 0.2;
    check_listed_backward(test);
  }
}

TEST_P(ListedBackwardTest, RowsThatShareTheirSinksInMemory) {
  ListedCase test = base(8);
  test.num_sinks = 2;
  test.repeats_sinks = true;
  test.params.sink_layout = SinkLayout::RowSinkHead;
  check_listed_backward(test);
}

TEST_P(ListedBackwardTest, LayoutsDimsBlocksAndFloatGradients) {
  for (const Layout layout : {Layout::PaddedRows, Layout::HeadMajor}) {
    for (const std::int32_t heads : {10, 130}) {
      ListedCase test = base(heads);
      test.heads_kv = 2;
      test.layout = layout;
      test.has_float_out = true;
      check_listed_backward(test);
      test.has_float_out = false;
      test.dim_qk -= 24;
      test.dim_v -= 40;
      test.block_keys = 7;
      test.entries = 30;
      check_listed_backward(test);
    }
  }
}

TEST_P(ListedBackwardTest, RandomCases) {
  for (int i = 0; i < num_random_masks() / 8; ++i) {
    const auto seed = static_cast<std::uint64_t>(first_random_mask() + i);
    RandomStream random(seed);
    ListedCase test = base(random.between(1, random.chance(50) ? 16 : 160));
    test.seed = seed;
    test.heads_kv = random.between(1, 3);
    test.heads_q *= test.heads_kv;
    test.rows_q = random.between(1, 30);
    test.rows_k = random.between(1, 300);
    test.block_keys = random.chance(70) ? 1 : random.between(2, 40);
    test.entries = random.between(0, 300) / test.block_keys;
    test.sm_margin = random.chance(50) ? 0 : device_info(0).num_sms - random.between(1, 4);
    test.layout = static_cast<Layout>(random.between(0, 2));
    test.num_sinks = random.chance(70) ? 0 : 1;
    test.has_dlse = random.chance(30);
    test.is_fast = random.chance(50);
    check_listed_backward(test);
    if (HasFailure()) break;
  }
}

TEST_P(ListedBackwardTest, SumsInOrder) {
  for (const int heads : {1, 20, 128, 150}) {
    ListedCase test = base(heads);
    test.heads_kv = 2;
    test.heads_q *= 2;
    test.rows_q = 12;
    test.is_fast = false;
    check_listed_backward(test);
    test.dim_qk -= 24;
    test.dim_v -= 40;
    test.block_keys = 7;
    test.entries = 30;
    check_listed_backward(test);
  }
}

/// Each key stands 100 times in each list: parts of a few queries fill the memory for them.
TEST_P(ListedBackwardTest, SumsInOrderOverSeveralRuns) {
  ListedCase test = base(3);
  test.rows_q = 20;
  test.block_keys = test.rows_k;
  test.entries = 100;
  test.is_fast = false;
  check_listed_backward(test);
}

INSTANTIATE_TEST_SUITE_P(Instances, ListedBackwardTest,
                         ::testing::Combine(::testing::Values(DType::BFloat16, DType::Float16),
                                            ::testing::Values(64, 128)));

class ListedBackwardRefusalTest : public GpuTest {
 protected:
  static std::string refusal(const BackwardArgs& args, const KeyLists& lists) {
    try {
      attention_backward_cuda(args, lists, {}, nullptr);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(ListedBackwardRefusalTest, NamesWhatIsNotTaken) {
  ListedCase test;
  test.rows_q = 4;
  const ListedIndices indices(test);
  const GuardedTensor q(DType::BFloat16, 4, 2, 128), k(DType::BFloat16, 300, 1, 128);
  const GuardedTensor lse(DType::Float32, 4, 2, 1), wide(DType::Float32, 300, 2, 128);
  BackwardArgs args;
  args.q = args.out = args.dout = args.dq = q.view();
  args.k = args.v = args.dk = args.dv = k.view();
  args.lse = lse.view(2);
  args.dout = wide.view().slice(0, 0, 4);
  EXPECT_EQ(refusal(args, indices.view()),
            "dout.dtype is float32; allowed: that of q under lists on a GPU");
  args.dout = q.view();
  args.is_accumulating = true;
  args.dq = wide.view().slice(0, 0, 4);
  args.dk = args.dv = wide.view().slice(1, 0, 1);
  EXPECT_EQ(refusal(args, indices.view()),
            "is_accumulating is true; allowed: false under lists on a GPU");
}

}  // namespace
}  // namespace magi::test
