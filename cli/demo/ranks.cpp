// SPDX-License-Identifier: Apache-2.0
#include "demo/ranks.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iostream>
#include <thread>
#include <utility>

#include "base/half.hpp"
#include "draw/numbers.hpp"
#include "kernels/cpu/attention.hpp"
#include "magi/runtime.hpp"
#include "ranks/gpu_group.hpp"
#include "ranks/rank_place.hpp"

namespace magi::cli {
namespace {

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

/// A rank's place and its groups.
struct Rank {
  Communicator& base;  ///< over host memory
  const RankPlace& place;
  DType type;
  std::shared_ptr<Communicator> group;  ///< over the place's memory
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

/// Host values as a tensor of a type at a place.
PlacedTensor put(const Rank& rank, const HostTensor<float>& values) {
  const TensorView shape = values;
  PlacedTensor tensor(rank.place, rank.type, {shape.shape[0], shape.shape[1], shape.shape[2]});
  const std::span<const float> floats = values.elements();
  const auto copy = [&](const void* from) {
    rank.place.copy_sync(tensor.memory.get(), from, tensor.size_bytes());
  };
  if (rank.type == DType::Float32) {
    copy(floats.data());
  } else {
    std::vector<std::uint16_t> bits(floats.size());
    std::ranges::transform(floats, bits.begin(), float_to_bfloat16);
    copy(bits.data());
  }
  return tensor;
}

/// A rank's tensors at its place: inputs of the rank's type, results in float32.
struct PlacedShard {
  PlacedTensor q, k, v, dout, out, lse, dq, dk, dv;

  PlacedShard(const Rank& rank, const Shard& shard)
      : q(put(rank, shard.q)),
        k(put(rank, shard.k)),
        v(put(rank, shard.v)),
        dout(put(rank, shard.dout)),
        out(rank.place, DType::Float32, {q.view.shape[0], kDemoHeadsQ, kDemoHeadDim}),
        lse(rank.place, DType::Float32, {q.view.shape[0], kDemoHeadsQ}),
        dq(rank.place, DType::Float32, {q.view.shape[0], kDemoHeadsQ, kDemoHeadDim}),
        dk(rank.place, DType::Float32, {q.view.shape[0], kDemoHeadsKv, kDemoHeadDim}),
        dv(rank.place, DType::Float32, {q.view.shape[0], kDemoHeadsKv, kDemoHeadDim}) {}

  void fetch_sync(const Rank& rank, Shard& shard) const {
    for (const auto& [from, to] :
         {std::pair{&out, &shard.out}, std::pair{&lse, &shard.lse}, std::pair{&dq, &shard.dq},
          std::pair{&dk, &shard.dk}, std::pair{&dv, &shard.dv}}) {
      rank.place.copy_sync(to->elements().data(), from->memory.get(), from->size_bytes());
    }
  }
};

/// Seconds of `work` that all ranks start together, so that times do not hold others' delays, and
/// the bytes that this rank sends in it.
double run_together(Rank& rank, const std::function<void()>& work,
                    std::array<std::int64_t, kMostDemoRanks>& bytes) {
  rank.base.allgather_sync({});
  const CommCounters before = rank.group->counters();
  const double seconds = rank.place.time_sync(work);
  add_sent(before, rank.group->counters(), bytes);
  return seconds;
}

RankFigures attend(const Scene& scene, Rank& rank, Shard& shard) {
  const PlacedShard tensors(rank, shard);
  DistributedAttention attention(scene.plan, *rank.group);
  const AttentionInputs inputs{.q = tensors.q.view, .k = tensors.k.view, .v = tensors.v.view};
  const AttentionResult result{.out = tensors.out.view, .lse = tensors.lse.view};
  const InputGradients gradients{
      .dq = tensors.dq.view, .dk = tensors.dk.view, .dv = tensors.dv.view};
  void* stream = rank.place.stream;
  RankFigures figures;
  figures.forward_seconds = run_together(
      rank, [&] { attention.forward(inputs, result, stream); }, figures.forward_bytes);
  figures.backward_seconds = run_together(
      rank,
      [&] { attention.backward(inputs, result, {.dout = tensors.dout.view}, gradients, stream); },
      figures.backward_bytes);
  tensors.fetch_sync(rank, shard);
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

void run_at(const RankPlace& place, const DemoInput& input,
            const std::shared_ptr<Communicator>& base, SharedResults& results) {
  Rank rank{*base, place, input.type, base};
  if (input.is_on_gpus) rank.group = make_gpu_group(base, input.deadline);
  if (base->rank() == 0) results.set_place(place.name, rank.group->backend());
  for (std::size_t s = 0; s < input.scenes.size(); ++s) {
    const Scene& scene = input.scenes[s];
    const Placement& placement = scene.plan->placement_q;
    Shard shard = take_shard(input, placement, base->rank());
    const RankFigures figures = attend(scene, rank, shard);
    gather_figures(figures, *base, results.scene(s).figures);
    gather_results(shard, placement, *base, results.scene(s));
    if (base->rank() == 0) {
      std::cerr << "  ranks: " << scene.name << ", forward "
                << draw::seconds_text(figures.forward_seconds) << ", backward "
                << draw::seconds_text(figures.backward_seconds) << std::endl;
    }
  }
  if (rank.group == base) return;
  if (rank.group->backend() == std::string_view("nccl")) rank.group->close_sync();
  base->allgather_sync({});  // nobody writes into windows that end now
}

}  // namespace

void run_demo_rank(const DemoInput& input, const std::shared_ptr<Communicator>& base,
                   SharedResults& results) {
  const auto cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  cpu::set_num_threads(std::max(1, cores / base->num_ranks()));
  const auto run = [&](const RankPlace& place) { run_at(place, input, base, results); };
  input.is_on_gpus ? on_gpu(base->rank(), run) : run(host_place());
}

}  // namespace magi::cli
