// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <tuple>
#include <vector>

#include "cuda/stream.hpp"
#include "kernels/sm90/forward/case.hpp"
#include "support/gpu/device_slices.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/graph.hpp"
#include "support/gpu/instance_dims.hpp"

// Rows with so many keys that their tiles are split. Random masks in splits:
// ForwardMaskTest; lists: DeviceListTest, SplitListTest.
namespace magi::test {
namespace {

class ForwardSplitTest
    : public GpuTest,
      public ::testing::WithParamInterface<std::tuple<DType, InstanceDims, const char*>> {
 protected:
  /// 70 rows over 3,500 keys, 30 of them with a tail of their own.
  ForwardCase base() const {
    ForwardCase test;
    test.type = std::get<0>(GetParam());
    test.dim_qk = std::get<1>(GetParam()).qk;
    test.dim_v = std::get<1>(GetParam()).v;
    test.backend = std::get<2>(GetParam());
    test.heads_q = 4;
    test.heads_kv = 2;
    test.mask = {70,
                 3500,
                 {band_slice({0, 70}, {0, 3000}, MaskType::Causal),
                  band_slice({20, 50}, {3000, 3500}, MaskType::Full)}};
    test.tuning.piece_cost = 4;
    return test;
  }
};

TEST_P(ForwardSplitTest, LongRows) {
  ForwardCase test = base();
  check_forward(test);
  test.layout = Layout::PaddedRows;
  test.heads_kv = 1;
  check_forward(test);
  test.tuning.packed_heads = 4;
  test.tuning.max_pieces = 7;
  check_forward(test);
}

TEST_P(ForwardSplitTest, FloatOutAndMergingIntoIt) {
  ForwardCase test = base();
  test.has_float_out = true;
  check_forward(test);
  test.is_merging = true;
  check_forward(test);
}

TEST_P(ForwardSplitTest, SinksSoftcapAndMaxLogits) {
  ForwardCase test = base();
  test.num_sinks = 2;
  check_forward(test);
  test.has_max_logits = true;
  test.params.softcap = 15.0;
  test.params.sink_layout = SinkLayout::RowSinkHead;
  check_forward(test);
}

TEST_P(ForwardSplitTest, WholeTilesBesideSplits) {
  ForwardCase test = base();
  test.mask = {600, 3000, {}};
  for (std::int32_t begin = 40; begin < 600; begin += 40) {
    test.mask.slices.push_back(
        band_slice({begin, begin + 40}, {begin, begin + 40}, MaskType::Causal));
  }
  test.mask.slices.push_back(band_slice({0, 40}, {0, 3000}, MaskType::Full));
  test.tuning.packed_heads = 1;
  check_forward(test);
}

INSTANTIATE_TEST_SUITE_P(Instances, ForwardSplitTest,
                         ::testing::Combine(::testing::Values(DType::BFloat16, DType::Float16),
                                            forward_dims(), ::testing::Values("", "mma")));

using ForwardSplitCallTest = GpuTest;

/// Each call has memory of its own for its splits.
TEST_F(ForwardSplitCallTest, StreamsAndGraphsAtOnceGiveTheSameBits) {
  constexpr int kStreams = 4;
  constexpr int kRounds = 20;
  const std::vector<BandSlice> slices = {band_slice({0, 50}, {0, 30000}, MaskType::Causal)};
  std::vector<std::unique_ptr<CallTensors>> tensors;
  for (int i = 0; i < kStreams; ++i) {
    tensors.push_back(std::make_unique<CallTensors>(50, 30000, 16, 2, 128));
  }
  ForwardArgs args = tensors.front()->args();
  args.slices = slices;
  const ForwardWork work(args);
  ASSERT_GT(work.num_pieces(), 100);
  attention_forward_cuda(args, work, nullptr);
  const std::vector<std::uint8_t> expected = tensors.front()->results_sync();
  const Stream streams[kStreams];
  const cudaStream_t captured = streams[0].handle();
  const Graph graph(captured, [&] { attention_forward_cuda(args, work, captured); });
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& call : tensors) call->poison_sync();
    graph.launch(captured);
    for (int i = 1; i < kStreams; ++i) {
      attention_forward_cuda(tensors[static_cast<std::size_t>(i)]->args(), work,
                             streams[i].handle());
    }
    for (const auto& call : tensors) ASSERT_EQ(call->results_sync(), expected);
  }
}

}  // namespace
}  // namespace magi::test
