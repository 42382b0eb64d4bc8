// SPDX-License-Identifier: Apache-2.0
#include "demo/ranks.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <thread>

#include "draw/numbers.hpp"
#include "kernels/cpu/attention.hpp"
#include "magi/runtime.hpp"

namespace magi::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A rank's rows of everything that one mask needs.
struct Shard {
  HostTensor<float> q, k, v, dout, out, lse, dq, dk, dv;

  explicit Shard(std::int64_t rows)
      : q({rows, kDemoHeadsQ, kDemoHeadDim}),
        k({rows, kDemoHeadsKv, kDemoHeadDim}),
        v({rows, kDemoHeadsKv, kDemoHeadDim}),
        dout({rows, kDemoHeadsQ, kDemoHeadDim}),
        out({rows, kDemoHeadsQ, kDemoHeadDim}),
        lse({rows, kDemoHeadsQ}),
        dq({rows, kDemoHeadsQ, kDemoHeadDim}),
        dk({rows, kDemoHeadsKv, kDemoHeadDim}),
        dv({rows, kDemoHeadsKv, kDemoHeadDim}) {}
};

Shard take_shard(const DemoInput& input, const Placement& placement, std::int32_t rank) {
  Shard shard(placement.rows_of(rank));
  dispatch(input.embedding.q, placement, rank, shard.q);
  dispatch(input.embedding.k, placement, rank, shard.k);
  dispatch(input.embedding.v, placement, rank, shard.v);
  dispatch(input.embedding.dout, placement, rank, shard.dout);
  return shard;
}

void add_sent(const CommCounters& before, const CommCounters& after,
              std::array<std::int64_t, kMostDemoRanks>& bytes) {
  for (std::size_t peer = 0; peer < after.bytes_to_peer.size(); ++peer) {
    bytes[peer] = after.bytes_to_peer[peer] - before.bytes_to_peer[peer];
  }
}

RankFigures attend(const Scene& scene, Communicator& communicator, Shard& shard) {
  DistributedAttention attention(scene.plan, communicator);
  const AttentionInputs inputs{.q = shard.q, .k = shard.k, .v = shard.v};
  const AttentionResult result{.out = shard.out, .lse = shard.lse};
  const InputGradients gradients{.dq = shard.dq, .dk = shard.dk, .dv = shard.dv};
  RankFigures figures;
  communicator.allgather_sync({});  // all start together, so that times do not hold others' delays
  const CommCounters at_start = communicator.counters();
  const auto start = Clock::now();
  attention.forward(inputs, result);
  figures.forward_seconds = seconds_since(start);
  const CommCounters at_middle = communicator.counters();
  communicator.allgather_sync({});
  const CommCounters at_backward = communicator.counters();
  const auto middle = Clock::now();
  attention.backward(inputs, result, {.dout = shard.dout}, gradients);
  figures.backward_seconds = seconds_since(middle);
  add_sent(at_start, at_middle, figures.forward_bytes);
  add_sent(at_backward, communicator.counters(), figures.backward_bytes);
  return figures;
}

void gather_figures(const RankFigures& own, Communicator& communicator, RankFigures* all) {
  const auto everyone = communicator.allgather_sync(std::as_bytes(std::span(&own, 1)));
  if (communicator.rank() != 0) return;
  for (std::size_t rank = 0; rank < everyone.size(); ++rank) {
    std::memcpy(&all[rank], everyone[rank].data(), sizeof own);
  }
}

/// Undispatches on all ranks; rank 0 keeps what it gets in the shared results.
void gather_results(const Shard& shard, const Placement& placement, Communicator& communicator,
                    const SceneResults& results) {
  const auto gather = [&](const HostTensor<float>& local, const TensorView& target) {
    std::vector<float> unused;
    TensorView global = target;
    if (communicator.rank() != 0) {
      unused.resize(static_cast<std::size_t>(target.num_elements()));
      global.data = unused.data();
    }
    undispatch(local, placement, communicator, global);
  };
  gather(shard.out, results.out);
  gather(shard.lse, results.lse);
  gather(shard.dq, results.dq);
  gather(shard.dk, results.dk);
  gather(shard.dv, results.dv);
}

}  // namespace

void run_demo_rank(const DemoInput& input, Communicator& communicator, SharedResults& results) {
  const std::int32_t rank = communicator.rank();
  const auto cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  cpu::set_num_threads(std::max(1, cores / communicator.num_ranks()));
  for (std::size_t s = 0; s < input.scenes.size(); ++s) {
    const Scene& scene = input.scenes[s];
    const Placement& placement = scene.plan->placement_q;
    Shard shard = take_shard(input, placement, rank);
    const RankFigures figures = attend(scene, communicator, shard);
    gather_figures(figures, communicator, results.scene(s).figures);
    gather_results(shard, placement, communicator, results.scene(s));
    if (rank == 0) {
      std::cerr << "  ranks: " << scene.name << ", forward "
                << draw::seconds_text(figures.forward_seconds) << ", backward "
                << draw::seconds_text(figures.backward_seconds) << std::endl;
    }
  }
}

}  // namespace magi::cli
