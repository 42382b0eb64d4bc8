// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "magi/mask_builders.hpp"
#include "magi/runtime.hpp"
#include "support/comm_error.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/graph.hpp"
#include "support/refusal.hpp"

// Attention over nvlink by ranks that are threads on one GPU: graphs, and plans that differ.
namespace magi::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bits = std::vector<std::uint16_t>;

constexpr std::int32_t kRows = 640;
constexpr std::int32_t kDim = 64;

std::shared_ptr<const Plan> make_test_plan(std::int32_t num_ranks, bool is_causal,
                                           bool is_bounded = false) {
  const std::vector<std::int32_t> documents{0, 400, kRows};
  PlanConfig config{.num_ranks = num_ranks,
                    .num_heads_q = is_bounded ? 8 : 4,
                    .num_heads_kv = is_bounded ? 4 : 2,
                    .head_dim_qk = kDim,
                    .head_dim_v = kDim,
                    .overlap_degree = is_bounded ? 4 : 0};
  config.placement.chunk_size = 40;
  const Mask mask = mask_from_cu_seqlens(documents, documents, {.is_causal = is_causal});
  Plan plan = make_plan(mask, config);
  if (is_bounded) {
    config.max_exchange_bytes = *std::ranges::max_element(plan.report.rank_memory) / 2;
    plan = make_plan(mask, config);
    EXPECT_EQ(plan.stages_in_flight, 2);
  }
  return std::make_shared<const Plan>(std::move(plan));
}

/// One layer of a rank: its tensors, in bfloat16, and its calls.
class Layer {
 public:
  Layer(const std::shared_ptr<const Plan>& plan, Communicator& group)
      : rank_(group.rank()), attention_(plan, group) {
    const std::int64_t rows = plan->placement_q.rows_of(rank_);
    const std::int64_t heads_q = plan->config.num_heads_q, heads_kv = plan->config.num_heads_kv;
    inputs_ = {
        .q = tensor(rows, heads_q), .k = tensor(rows, heads_kv), .v = tensor(rows, heads_kv)};
    result_ = {.out = tensor(rows, heads_q),
               .lse = contiguous_view(nullptr, DType::Float32, {rows, heads_q})};
    result_.lse.device = 0;
    result_.lse.data = buffers_.emplace_back(static_cast<std::size_t>(4 * rows * heads_q)).data();
    dout_ = tensor(rows, heads_q);
    gradients_ = {
        .dq = tensor(rows, heads_q), .dk = tensor(rows, heads_kv), .dv = tensor(rows, heads_kv)};
  }

  /// Other values for everything that the layer reads.
  void draw(std::uint64_t seed, cudaStream_t stream) {
    for (const TensorView& tensor : {inputs_.q, inputs_.k, inputs_.v, dout_}) {
      RandomStream random(seed++ * 64 + static_cast<std::uint64_t>(rank_));
      Bits bits(static_cast<std::size_t>(tensor.num_elements()));
      // From 1/2 to 2, of either sign.
      for (auto& value : bits) {
        value = static_cast<std::uint16_t>(random.between(0x3f00, 0x3fff) |
                                           (random.chance(50) ? 0x8000 : 0));
      }
      cuda_check(cudaMemcpyAsync(tensor.data, bits.data(), bits.size() * sizeof(bits[0]),
                                 cudaMemcpyHostToDevice, stream),
                 "cudaMemcpyAsync");
    }
  }
  AttentionInputs& inputs() { return inputs_; }
  void forward(cudaStream_t stream) { attention_.forward(inputs_, result_, stream); }
  void backward(cudaStream_t stream) {
    attention_.backward(inputs_, result_, {.dout = dout_}, gradients_, stream);
  }
  /// All results that repeat bit for bit, behind what the stream was given.
  Bits results_sync(cudaStream_t stream) const {
    cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    Bits all;
    for (const TensorView& tensor : {result_.out, gradients_.dk, gradients_.dv}) {
      const auto part =
          to_host_sync<std::uint16_t>(tensor.data, static_cast<std::size_t>(tensor.num_elements()));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  Bits out_sync(cudaStream_t stream) const {
    Bits all = results_sync(stream);
    all.resize(static_cast<std::size_t>(result_.out.num_elements()));
    return all;
  }

 private:
  TensorView tensor(std::int64_t rows, std::int64_t heads) {
    TensorView view = contiguous_view(nullptr, DType::BFloat16, {rows, heads, kDim});
    view.device = 0;
    const auto size_bytes =
        static_cast<std::size_t>(std::max<std::int64_t>(view.num_elements() * 2, 16));
    view.data = bytes_.emplace_back(size_bytes).data();
    cuda_check(cudaMemset(view.data, 0, size_bytes), "cudaMemset");
    cuda_check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");  // others do not wait
    return view;
  }

  std::int32_t rank_;
  std::deque<DeviceBuffer> bytes_, buffers_;
  DistributedAttention attention_;
  AttentionInputs inputs_;
  AttentionResult result_;
  TensorView dout_;
  InputGradients gradients_;
};

/// A graph of one rank's stream, while other ranks' threads make calls of their own.
template <typename Enqueue>
Graph capture(cudaStream_t stream, const Enqueue& enqueue) {
  return {stream, enqueue, cudaStreamCaptureModeThreadLocal};
}

class NvlinkGraphs : public GpuTest, public ::testing::WithParamInterface<std::int32_t> {
 protected:
  static void run(const std::function<void(Communicator&, cudaStream_t)>& body) {
    run_ranks(GetParam(),
              [&](Communicator& base) {
                const DeviceScope scope(0);
                const Stream stream;
                const auto group = make_nvlink_group({std::shared_ptr<void>(), &base}, 0,
                                                     {.deadline = std::chrono::seconds(10)});
                body(*group, stream.handle());
                stream.wait_sync();
                base.allgather_sync({});  // nobody frees memory while others run
              },
              {.deadline = std::chrono::seconds(20)});
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, NvlinkGraphs, ::testing::Values(2, 4),
                         ::testing::PrintToStringParamName());

/// The second layer's stages take turns in memory, so its heads come in sections.
TEST_P(NvlinkGraphs, TwoLayersInOneGraphFollowTheirKeys) {
  run([](Communicator& group, cudaStream_t stream) {
    constexpr std::uint64_t kDraws = 4;
    Layer first(make_test_plan(GetParam(), true), group);
    Layer second(make_test_plan(GetParam(), true, true), group);
    const auto step = [&] {
      first.forward(stream);
      second.forward(stream);
      second.backward(stream);
      first.backward(stream);
    };
    const auto draw = [&](std::uint64_t seed) {
      first.draw(100 * seed, stream);
      second.draw(100 * seed + 50, stream);
    };
    std::vector<Bits> expected[2];
    for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
      draw(seed);
      step();
      expected[0].push_back(first.results_sync(stream));
      expected[1].push_back(second.results_sync(stream));
    }
    ASSERT_NE(expected[0][0], expected[0][1]);
    const Graph graph = capture(stream, step);
    RandomStream random(5);
    for (int replay = 0; replay < 40; ++replay) {
      const auto seed = static_cast<std::size_t>(random.between(0, kDraws - 1));
      draw(seed);
      graph.launch(stream);
      if (replay % 8 == 7) step();  // eager calls go between
      EXPECT_TRUE(first.results_sync(stream) == expected[0][seed]) << "replay " << replay;
      EXPECT_TRUE(second.results_sync(stream) == expected[1][seed]) << "replay " << replay;
    }
  });
}

/// More streams than a process has queues to the GPU: one of them shares that of any other.
constexpr std::size_t kMoreThanQueues = 33;

TEST_P(NvlinkGraphs, StreamsOfRanksMayShareAQueue) {
  run([](Communicator& group, cudaStream_t stream) {
    const std::vector<Stream> streams(group.rank() == 0 ? 0 : kMoreThanQueues);
    for (const bool is_causal : {true, false}) {
      Layer layer(make_test_plan(GetParam(), is_causal), group);
      layer.draw(1, stream);
      cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      Bits expected;
      for (std::size_t call = 0; call < kMoreThanQueues; ++call) {
        cudaStream_t queue = streams.empty() ? stream : streams[call].handle();
        layer.forward(queue);
        layer.backward(queue);
        const Bits results = layer.results_sync(queue);
        ASSERT_NO_THROW(group.check()) << "call " << call;
        if (call == 0) expected = results;
        ASSERT_TRUE(results == expected) << "call " << call;
      }
    }
  });
}

TEST_P(NvlinkGraphs, ARefusedCaptureLeavesTheGroupUsable) {
  run([](Communicator& group, cudaStream_t stream) {
    Layer layer(make_test_plan(GetParam(), true, true), group);
    layer.draw(1, stream);
    cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    group.allgather_sync({});  // what other threads of the process do may end a capture
    const std::string message = testing::refusal_of(
        [&] { const Graph graph = capture(stream, [&] { layer.forward(stream); }); });
    group.allgather_sync({});
    EXPECT_EQ(message,
              "stream is being captured; allowed: one that is not, for the first call of its size "
              "over nvlink");
    group.check();
    layer.forward(stream);
    const Bits expected = layer.out_sync(stream);
    group.allgather_sync({});
    const Graph graph = capture(stream, [&] { layer.forward(stream); });
    group.allgather_sync({});
    for (int replay = 0; replay < 3; ++replay) {
      graph.launch(stream);
      EXPECT_TRUE(layer.out_sync(stream) == expected);
    }
  });
}

TEST_P(NvlinkGraphs, AnotherPlanIsFoundInTheFirstPass) {
  run([](Communicator& group, cudaStream_t stream) {
    const bool is_causal = group.rank() + 1 < group.num_ranks();
    Layer layer(make_test_plan(GetParam(), is_causal), group);
    layer.draw(1, stream);
    layer.forward(stream);
    for (const std::uint16_t bits : layer.out_sync(stream)) {
      ASSERT_GT(bits & 0x7fff, 0x7f80) << "a result that is a number";
    }
    const CommError error = testing::catch_comm_error([&] { group.check(); });
    EXPECT_EQ(error.failure(), CommFailure::PlanMismatch);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("is in another call"),
                                    HasSubstr("rank " + std::to_string(group.rank()))));
  });
}

struct OtherOption {
  bool is_backward;
  std::function<void(AttentionInputs&)> change;
};

/// One layer whose first pass, or only its backward, rank 0 calls with another option.
void expect_other_option_found(const OtherOption& option, Communicator& group,
                               cudaStream_t stream) {
  Layer layer(make_test_plan(group.num_ranks(), true), group);
  layer.draw(1, stream);
  if (option.is_backward) {
    layer.forward(stream);
    cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    ASSERT_NO_THROW(group.check());
  }
  if (group.rank() == 0) option.change(layer.inputs());
  if (option.is_backward) {
    layer.backward(stream);
  } else {
    layer.forward(stream);
  }
  cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const CommError error = testing::catch_comm_error([&] { group.check(); });
  EXPECT_EQ(error.failure(), CommFailure::PlanMismatch) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("is in another call"));
}

TEST_P(NvlinkGraphs, OtherOptionsOfACallAreFound) {
  const auto scale = [](AttentionInputs& inputs) { inputs.params.softmax_scale = 0.5; };
  const auto softcap = [](AttentionInputs& inputs) { inputs.params.softcap = 20.0; };
  const auto fast = [](AttentionInputs& inputs) { inputs.is_fast_backward = true; };
  const OtherOption options[] = {
      {false, scale}, {false, softcap}, {true, scale}, {true, softcap}, {true, fast}};
  for (const OtherOption& option : options) {
    run([&option](Communicator& group, cudaStream_t stream) {
      expect_other_option_found(option, group, stream);
    });
  }
}

TEST_P(NvlinkGraphs, OptionsThatMeanTheSameAreEqual) {
  run([](Communicator& group, cudaStream_t stream) {
    Layer layer(make_test_plan(group.num_ranks(), true), group);
    layer.draw(1, stream);
    layer.inputs().is_fast_backward = group.rank() == 0;  // which a forward does not read
    if (group.rank() == 0) layer.inputs().params.softmax_scale = 1.0 / 8;
    for (int call = 0; call < 4; ++call) layer.forward(stream);
    cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    EXPECT_NO_THROW(group.check());
  });
}

}  // namespace
}  // namespace magi::test
