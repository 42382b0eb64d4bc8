// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "base/random.hpp"
#include "kernels/sm90/listed/case.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/refusal.hpp"

namespace magi::test {
namespace {

void check_listed(const ListedCase& test) {
  check_listed_forward(test);
  check_listed_backward(test);
}

void check_lengths_around_tiles(ListedCase test) {
  for (const std::int32_t entries : {1, 63, 64, 65, 127, 128, 129, 192, 256, 700}) {
    test.entries = entries;
    for (const bool is_full : {false, true}) {
      test.has_full_lists = is_full;
      check_listed(test);
    }
  }
}

void check_nothing_to_see(ListedCase test) {
  test.entries = 0;
  check_listed(test);
  test.num_sinks = 2;
  check_listed(test);
  test.entries = 30;
  test.rows_k = 0;
  check_listed(test);
  test.rows_q = 0;
  check_listed(test);
  test.params.sink_layout = SinkLayout::RowSinkHead;
  check_listed(test);
}

/// Items follow each other through the rings of one CTA or two, and add to the same keys.
void check_one_multiprocessor(ListedCase test, std::int32_t rows_q) {
  test.heads_kv = 2;
  test.rows_q = rows_q;
  test.sm_margin = device_info(0).num_sms - 1;
  for (const std::int32_t entries : {20, 100, 200}) {
    test.entries = entries;
    check_listed(test);
  }
}

struct Most {
  std::int32_t heads_kv, rows_q, rows_k;
};

/// Cases of up to as many query heads per kv head as `largest` has, half of them of at most 16.
void check_random_cases(const ListedCase& largest, const Most& most) {
  for (int i = 0; i < num_random_masks() / 4 && !::testing::Test::HasFailure(); ++i) {
    ListedCase test = largest;
    test.seed = static_cast<std::uint64_t>(first_random_mask() + i);
    RandomStream random(test.seed);
    test.heads_q = random.between(1, random.chance(50) ? 16 : largest.heads_q);
    test.heads_kv = random.between(1, most.heads_kv);
    test.heads_q *= test.heads_kv;
    test.rows_q = random.between(1, most.rows_q);
    test.rows_k = random.between(1, most.rows_k);
    test.block_keys = random.chance(70) ? 1 : random.between(2, 40);
    test.entries = random.between(0, 400) / test.block_keys;
    test.sm_margin = random.chance(50) ? 0 : device_info(0).num_sms - random.between(1, 4);
    test.layout = static_cast<Layout>(random.between(0, 2));
    test.num_sinks = random.chance(70) ? 0 : 1;
    test.has_max_logits = !test.is_latent() && random.chance(30);
    test.has_dlse = random.chance(30);
    test.is_fast = random.chance(50);
    test.is_distinct = random.chance(50);
    check_listed_forward(test);
    if (i % 2 == 0) check_listed_backward(test);
  }
}

class ListedTest : public GpuTest, public ::testing::WithParamInterface<std::tuple<DType, int>> {
 protected:
  ListedCase base(std::int32_t heads) const {
    ListedCase test;
    test.type = std::get<0>(GetParam());
    test.dim_qk = test.dim_v = std::get<1>(GetParam());
    test.heads_q = heads;
    return test;
  }
};

TEST_P(ListedTest, HeadsOfAKvHead) {
  for (const std::int32_t heads : {1, 8, 16, 63, 64, 65, 127, 128, 129, 200}) {
    check_listed(base(heads));
  }
}

TEST_P(ListedTest, LengthsAroundTiles) {
  for (const std::int32_t heads : {4, 128}) check_lengths_around_tiles(base(heads));
}

TEST_P(ListedTest, NothingToSee) {
  for (const std::int32_t heads : {4, 128}) check_nothing_to_see(base(heads));
}

/// Queries of one tile see keys of each other.
TEST_P(ListedTest, NeighboursShareKeys) {
  for (const std::int32_t heads : {1, 7, 8, 12, 16, 32}) {
    for (const std::int32_t entries : {30, 64, 250}) {
      ListedCase test = base(3 * heads);
      test.heads_kv = 3;
      test.rows_q = 13;
      test.entries = entries;
      test.is_distinct = true;
      test.seed = static_cast<std::uint64_t>(100 * heads + entries);
      check_listed(test);
      test.num_sinks = 1;
      test.rows_k = 5000;
      test.params.sink_layout = SinkLayout::RowSinkHead;
      check_listed_forward(test);
    }
  }
}

/// Memory for joined lists holds those of 170 queries.
TEST_P(ListedTest, NeighboursOverSeveralRuns) {
  ListedCase test = base(32);
  test.rows_q = 173;
  test.block_keys = test.rows_k;
  test.entries = 1000;
  check_listed(test);
}

TEST_P(ListedTest, BlocksOfKeys) {
  for (const std::int32_t block : {2, 16, 33, 64, 400}) {
    ListedCase test = base(24);
    test.heads_kv = 3;
    test.block_keys = block;
    test.entries = 12;
    check_listed(test);
  }
}

TEST_P(ListedTest, OneMultiprocessorWalksAllItems) {
  for (const std::int32_t heads : {12, 140}) check_one_multiprocessor(base(heads), 23);
}

TEST_P(ListedTest, SoftcapSinksMaxLogitsAndTheGradientOfLse) {
  for (const std::int32_t heads : {8, 128}) {
    ListedCase test = base(heads);
    test.num_sinks = 3;
    check_listed(test);
    test.params.sink_layout = SinkLayout::RowSinkHead;
    test.has_max_logits = test.has_dlse = true;
    check_listed(test);
    test.magnitude = 2.0;
    test.params.softcap = 15.0;
    test.params.softmax_scale = 0.2;
    check_listed(test);
  }
}

TEST_P(ListedTest, LayoutsDimsAndFloatOut) {
  for (const Layout layout : {Layout::PaddedRows, Layout::HeadMajor}) {
    for (const std::int32_t heads : {10, 130}) {
      ListedCase test = base(heads);
      test.heads_kv = 2;
      test.layout = layout;
      test.has_float_out = true;
      check_listed(test);
      test.has_float_out = false;
      test.dim_qk -= 24;
      test.dim_v -= 40;
      check_listed(test);
    }
  }
}

TEST_P(ListedTest, RandomCases) {
  check_random_cases(base(160), {.heads_kv = 3, .rows_q = 40, .rows_k = 500});
}

/// Only their first one is a block, and what lies behind the keys is not walked.
TEST_P(ListedTest, BlocksLongerThanTheKeys) {
  ListedCase test = base(16);
  test.entries = 3;
  test.block_keys = kMaxRows;
  check_listed(test);
}

TEST_P(ListedTest, RowsThatShareTheirSinksInMemory) {
  ListedCase test = base(8);
  test.num_sinks = 2;
  test.repeats_sinks = true;
  test.params.sink_layout = SinkLayout::RowSinkHead;
  check_listed_backward(test);
}

TEST_P(ListedTest, SumsInOrder) {
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
TEST_P(ListedTest, SumsInOrderOverSeveralRuns) {
  ListedCase test = base(3);
  test.rows_q = 20;
  test.block_keys = test.rows_k;
  test.entries = 100;
  test.is_fast = false;
  check_listed_backward(test);
}

INSTANTIATE_TEST_SUITE_P(Instances, ListedTest,
                         ::testing::Combine(::testing::Values(DType::BFloat16, DType::Float16),
                                            ::testing::Values(64, 128)));

/// Keys that are latents: values are their first columns.
class LatentTest : public GpuTest {
 protected:
  static ListedCase base(std::int32_t heads) {
    ListedCase test;
    test.dim_qk = 576;
    test.dim_v = 512;
    test.heads_q = heads;
    test.rows_q = 3;
    return test;
  }
};

TEST_F(LatentTest, HeadsAndLengthsAroundTiles) {
  for (const std::int32_t heads : {1, 63, 64, 65, 128, 200}) check_listed(base(heads));
  check_lengths_around_tiles(base(20));
}

TEST_F(LatentTest, NothingToSee) { check_nothing_to_see(base(70)); }

TEST_F(LatentTest, OneMultiprocessorWalksAllItems) { check_one_multiprocessor(base(140), 9); }

TEST_F(LatentTest, SinksScaleLayoutsAndFloatOut) {
  for (const Layout layout : {Layout::PaddedRows, Layout::HeadMajor}) {
    ListedCase test = base(66);
    test.layout = layout;
    test.num_sinks = 3;
    test.has_dlse = true;
    check_listed(test);
    test.params.sink_layout = SinkLayout::RowSinkHead;
    test.params.softmax_scale = 0.2;
    test.has_float_out = true;
    check_listed(test);
  }
}

TEST_F(LatentTest, SumsInOrder) {
  for (const int heads : {20, 130}) {
    ListedCase test = base(heads);
    test.is_fast = false;
    check_listed_backward(test);
    test.block_keys = 7;
    test.entries = 30;
    check_listed_backward(test);
  }
}

TEST_F(LatentTest, RandomCases) {
  check_random_cases(base(130), {.heads_kv = 2, .rows_q = 6, .rows_k = 400});
}

using ListedRefusalTest = GpuTest;

std::string refusal(const ForwardArgs& args, const KeyLists& lists, int sm_margin = 0) {
  return testing::refusal_of([&] { attention_forward_cuda(args, lists, sm_margin, nullptr); });
}

std::string refusal(const BackwardArgs& args, const KeyLists& lists) {
  return testing::refusal_of([&] { attention_backward_cuda(args, lists, {}, nullptr); });
}

TEST_F(ListedRefusalTest, NamesWhatIsNotTaken) {
  ListedCase test;
  test.rows_q = 4;
  const ListedIndices indices(test);
  const GuardedTensor q(DType::BFloat16, 4, 2, 128), k(DType::BFloat16, 300, 1, 128);
  const GuardedTensor lse(DType::Float32, 4, 2, 1), wide(DType::Float32, 300, 2, 128);
  ForwardArgs args;
  args.q = args.out = q.view();
  args.k = args.v = k.view();
  args.lse = lse.view(2);
  KeyLists lists = indices.view();
  lists.indices.shape[0] = 3;
  EXPECT_EQ(refusal(args, lists), "indices.shape is [3, 1, 200]; allowed: [4, 1, 200]");
  lists = indices.view();
  lists.indices.dtype = DType::Int64;
  EXPECT_EQ(refusal(args, lists), "indices.dtype is int64; allowed: int32");
  lists = indices.view();
  lists.indices.device = kCpuDevice;
  EXPECT_EQ(refusal(args, lists), "indices.device is -1; allowed: 0 (that of the call)");
  lists = indices.view();
  lists.block_keys = 0;
  EXPECT_EQ(refusal(args, lists), "block_keys is 0; allowed: 1 to 1073741823");
  lists = indices.view();
  EXPECT_EQ(refusal(args, lists, -1),
            "sm_margin is -1; allowed: 0 to one less than the device's SMs");
  args.k.stride[0] = std::int64_t{1} << 28;
  EXPECT_EQ(refusal(args, lists),
            "k's bytes from the first row to the last is 160524402688; allowed: below 2^36 - 16 "
            "under lists on a GPU");
  args.k = k.view();
  args.is_merging = true;
  args.out.dtype = DType::Float32;
  EXPECT_EQ(refusal(args, lists), "is_merging is true; allowed: false under lists on a GPU");

  BackwardArgs back;
  back.q = back.out = back.dout = back.dq = q.view();
  back.k = back.v = back.dk = back.dv = k.view();
  back.lse = lse.view(2);
  back.dout = wide.view().slice(0, 0, 4);
  EXPECT_EQ(refusal(back, indices.view()),
            "dout.dtype is float32; allowed: that of q under lists on a GPU");
  back.dout = q.view();
  back.is_accumulating = true;
  back.dq = wide.view().slice(0, 0, 4);
  back.dk = back.dv = wide.view().slice(1, 0, 1);
  EXPECT_EQ(refusal(back, indices.view()),
            "is_accumulating is true; allowed: false under lists on a GPU");
}

TEST_F(ListedRefusalTest, NamesWhatIsNotTakenOfLatents) {
  ListedCase test;
  test.rows_q = 4;
  const ListedIndices indices(test);
  const GuardedTensor q(DType::BFloat16, 4, 2, 576), k(DType::BFloat16, 300, 1, 576);
  const GuardedTensor lse(DType::Float32, 4, 2, 1), v(DType::BFloat16, 300, 1, 512);
  ForwardArgs args;
  args.q = args.out = q.view();
  args.k = args.v = k.view();
  args.lse = lse.view(2);
  args.v.shape[2] = args.out.shape[2] = 512;
  const std::string with = "with head dims 576 and 512 under lists on a GPU";
  args.params.softcap = 2.0;
  EXPECT_EQ(refusal(args, indices.view()), "softcap is 2; allowed: 0 (off) " + with);
  args.params.softcap = 0.0;
  args.v = v.view();
  EXPECT_EQ(refusal(args, indices.view()),
            "v is apart from k; allowed: k[..., :512], in its memory, " + with);
  args.v.shape[2] = args.out.shape[2] = 256;
  EXPECT_EQ(refusal(args, indices.view()),
            "q.shape[2] is 576; allowed: multiples of 8 from 8 to 128, or 576 beside 512 of v, "
            "under lists on a GPU");
}

}  // namespace
}  // namespace magi::test
