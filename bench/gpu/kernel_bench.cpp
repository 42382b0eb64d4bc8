// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/stream_counters.hpp"
#include "gpu/variants.hpp"
#include "kernels/sm90/forward/forward.hpp"
#include "magi/attention_cuda.hpp"

// A C face of the kernels for bench/compare_attention.py (ctypes). A failing call returns null or 1
// and leaves its message in magi_bench_error().
namespace {

thread_local std::string last_error;

struct Work {
  magi::sm90::ForwardState state;
  magi::StreamCounters counters;
  magi::ForwardArgs args;
};

/// A backward call with a workspace of its own, and the forward before it.
struct BackwardBench {
  std::unique_ptr<magi::ForwardWork> forward;
  std::unique_ptr<magi::BackwardWork> backward;
  magi::DeviceBuffer workspace;
  magi::BackwardArgs args;
};

magi::TensorView tensor(void* data, magi::DType type, std::int64_t rows, std::int64_t heads,
                        std::int64_t dim) {
  return {data, type, 0, 3, {rows, heads, dim}, {heads * dim, dim, 1}};
}

}  // namespace

/// Shapes of one problem and its slices, six int32 each (q0, q1, k0, k1, d_min, d_max).
struct BenchProblem {
  std::int32_t rows_q;
  std::int32_t rows_k;
  std::int32_t heads_q;
  std::int32_t heads_kv;
  std::int32_t dim_qk;
  std::int32_t dim_v;
  std::int32_t packed_heads;
  std::int32_t num_slices;
  const std::int32_t* slices;
};

struct BenchTensors {
  void* q;
  void* k;
  void* v;
  void* out;
  void* lse;
};

struct BenchGradients {
  BenchTensors forward;
  void* dout;
  void* dq;
  void* dk;
  void* dv;
};

struct BenchTuning {
  std::int32_t is_deterministic;
  std::int32_t packed_heads;
  std::int32_t heads_per_item;
  std::int32_t section_heads;
  std::int32_t head_walk;  ///< as magi::HeadWalk
  std::int32_t is_plain;
};

namespace {

std::vector<magi::BandSlice> slices_of(const BenchProblem& problem) {
  std::vector<magi::BandSlice> slices;
  for (std::int32_t i = 0; i < problem.num_slices; ++i) {
    const std::int32_t* s = problem.slices + 6 * i;
    slices.push_back({s[0], s[1], s[2], s[3], s[4], s[5]});
  }
  return slices;
}

magi::BackwardArgs backward_args(const BenchProblem& problem) {
  constexpr auto kType = magi::DType::BFloat16;
  magi::BackwardArgs args;
  args.q = args.dq = tensor(nullptr, kType, problem.rows_q, problem.heads_q, problem.dim_qk);
  args.k = args.dk = tensor(nullptr, kType, problem.rows_k, problem.heads_kv, problem.dim_qk);
  args.v = args.dv = tensor(nullptr, kType, problem.rows_k, problem.heads_kv, problem.dim_v);
  args.out = args.dout = tensor(nullptr, kType, problem.rows_q, problem.heads_q, problem.dim_v);
  args.lse = {
      nullptr, magi::DType::Float32, 0, 2, {problem.rows_q, problem.heads_q}, {problem.heads_q, 1}};
  return args;
}

magi::ForwardArgs forward_args(const magi::BackwardArgs& args) {
  magi::ForwardArgs forward;
  forward.q = args.q;
  forward.k = args.k;
  forward.v = args.v;
  forward.slices = args.slices;
  forward.out = args.out;
  forward.lse = args.lse;
  return forward;
}

/// Runs `body` and returns 0, or 1 where it throws.
template <typename Body>
int guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

}  // namespace

#define MAGI_EXPORT extern "C" __attribute__((visibility("default")))

MAGI_EXPORT const char* magi_bench_error() { return last_error.c_str(); }

MAGI_EXPORT const char* magi_bench_variant(int index) {
  const auto variants = magi::bench::forward_variants();
  return index < static_cast<int>(variants.size()) ? variants[static_cast<std::size_t>(index)].name
                                                   : nullptr;
}

MAGI_EXPORT void* magi_bench_make(const BenchProblem* problem, int variant) {
  try {
    const std::vector<magi::BandSlice> slices = slices_of(*problem);
    const magi::ForwardProblem shapes{.rows_q = problem->rows_q,
                                      .rows_k = problem->rows_k,
                                      .heads_q = problem->heads_q,
                                      .heads_kv = problem->heads_kv,
                                      .dim_qk = problem->dim_qk,
                                      .dim_v = problem->dim_v};
    const auto& instance =
        magi::bench::forward_variants()[static_cast<std::size_t>(variant)].instance;
    magi::sm90::InstanceSet instances;
    instances.by_features.fill(&instance);
    auto work = std::make_unique<Work>();
    // One instance serves every feature set, and not all of them know splits.
    work->state = magi::sm90::make_forward(
        instances, shapes, slices, {.packed_heads = problem->packed_heads, .max_pieces = 1}, {});
    const magi::DType type = instance.config.type;
    work->args.q = tensor(nullptr, type, shapes.rows_q, shapes.heads_q, shapes.dim_qk);
    work->args.k = tensor(nullptr, type, shapes.rows_k, shapes.heads_kv, shapes.dim_qk);
    work->args.v = tensor(nullptr, type, shapes.rows_k, shapes.heads_kv, shapes.dim_v);
    work->args.out = tensor(nullptr, type, shapes.rows_q, shapes.heads_q, shapes.dim_v);
    work->args.lse = tensor(nullptr, magi::DType::Float32, shapes.rows_q, shapes.heads_q, 1);
    return work.release();
  } catch (const std::exception& error) {
    last_error = error.what();
    return nullptr;
  }
}

MAGI_EXPORT int magi_bench_packed_heads(const void* work) {
  return static_cast<const Work*>(work)->state.list.packed_heads;
}

MAGI_EXPORT int magi_bench_run(void* work, const BenchTensors* tensors, void* stream) {
  return guarded([&] {
    auto& bench = *static_cast<Work*>(work);
    bench.args.q.data = tensors->q;
    bench.args.k.data = tensors->k;
    bench.args.v.data = tensors->v;
    bench.args.out.data = tensors->out;
    bench.args.lse.data = tensors->lse;
    const auto cuda_stream = static_cast<cudaStream_t>(stream);
    magi::sm90::enqueue_forward(bench.args, bench.state,
                                {.counters = bench.counters.of_stream(cuda_stream)}, cuda_stream);
  });
}

MAGI_EXPORT void magi_bench_free(void* work) { delete static_cast<Work*>(work); }

MAGI_EXPORT void* magi_bench_backward_make(const BenchProblem* problem, const BenchTuning* tuning) {
  auto bench = std::make_unique<BackwardBench>();
  const std::vector<magi::BandSlice> slices = slices_of(*problem);
  const int status = guarded([&] {
    bench->args = backward_args(*problem);
    bench->args.slices = slices;
    bench->forward = std::make_unique<magi::ForwardWork>(forward_args(bench->args));
    bench->backward = std::make_unique<magi::BackwardWork>(
        bench->args,
        magi::BackwardTuning{.packed_heads = tuning->packed_heads,
                             .heads_per_item = tuning->heads_per_item,
                             .is_deterministic = tuning->is_deterministic != 0,
                             .section_heads = tuning->section_heads,
                             .head_walk = static_cast<magi::HeadWalk>(tuning->head_walk),
                             .is_plain = tuning->is_plain != 0});
    bench->workspace =
        magi::DeviceBuffer(static_cast<std::size_t>(bench->backward->workspace_bytes()));
    bench->args.slices = {};
  });
  return status == 0 ? bench.release() : nullptr;
}

/// What the cost model chose.
MAGI_EXPORT void magi_bench_backward_choice(const void* work, BenchTuning* tuning) {
  const auto& bench = *static_cast<const BackwardBench*>(work);
  tuning->packed_heads = bench.backward->packed_heads();
  tuning->heads_per_item = bench.backward->heads_per_item();
}

/// Takes the tensors of later calls and computes out and lse.
MAGI_EXPORT int magi_bench_backward_bind(void* work, const BenchGradients* tensors, void* stream) {
  return guarded([&] {
    auto& bench = *static_cast<BackwardBench*>(work);
    bench.args.q.data = tensors->forward.q;
    bench.args.k.data = tensors->forward.k;
    bench.args.v.data = tensors->forward.v;
    bench.args.out.data = tensors->forward.out;
    bench.args.lse.data = tensors->forward.lse;
    bench.args.dout.data = tensors->dout;
    bench.args.dq.data = tensors->dq;
    bench.args.dk.data = tensors->dk;
    bench.args.dv.data = tensors->dv;
    magi::attention_forward_cuda(forward_args(bench.args), *bench.forward, stream);
  });
}

MAGI_EXPORT int magi_bench_backward_run(void* work, void* stream) {
  return guarded([&] {
    auto& bench = *static_cast<BackwardBench*>(work);
    const auto size_bytes = static_cast<std::int64_t>(bench.workspace.size_bytes());
    magi::attention_backward_cuda(bench.args, *bench.backward, {bench.workspace.data(), size_bytes},
                                  stream);
  });
}

MAGI_EXPORT void magi_bench_backward_free(void* work) { delete static_cast<BackwardBench*>(work); }
