// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device.hpp"
#include "gpu/variants.hpp"
#include "kernels/sm90/forward/forward.hpp"

// A C face of the forward for bench/compare_attention.py (ctypes). A failing call returns null or 1
// and leaves its message in magi_bench_error().
namespace {

thread_local std::string last_error;

struct Work {
  magi::ForwardWork::State state;
  magi::ForwardArgs args;
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
  std::int32_t dim;
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

#define MAGI_EXPORT extern "C" __attribute__((visibility("default")))

MAGI_EXPORT const char* magi_bench_error() { return last_error.c_str(); }

MAGI_EXPORT const char* magi_bench_variant(int index) {
  const auto variants = magi::bench::forward_variants();
  return index < static_cast<int>(variants.size()) ? variants[static_cast<std::size_t>(index)].name
                                                   : nullptr;
}

MAGI_EXPORT void* magi_bench_make(const BenchProblem* problem, int variant) {
  try {
    std::vector<magi::BandSlice> slices;
    for (std::int32_t i = 0; i < problem->num_slices; ++i) {
      const std::int32_t* s = problem->slices + 6 * i;
      slices.push_back({s[0], s[1], s[2], s[3], s[4], s[5]});
    }
    const magi::ForwardProblem shapes{.rows_q = problem->rows_q,
                                      .rows_k = problem->rows_k,
                                      .heads_q = problem->heads_q,
                                      .heads_kv = problem->heads_kv,
                                      .dim_qk = problem->dim,
                                      .dim_v = problem->dim};
    const auto& instance =
        magi::bench::forward_variants()[static_cast<std::size_t>(variant)].instance;
    auto work = std::make_unique<Work>();
    work->state =
        magi::sm90::make_work(instance, shapes, slices, {.packed_heads = problem->packed_heads});
    const magi::DType type = instance.config.type;
    work->args.q = tensor(nullptr, type, shapes.rows_q, shapes.heads_q, shapes.dim_qk);
    work->args.k = tensor(nullptr, type, shapes.rows_k, shapes.heads_kv, shapes.dim_qk);
    work->args.v = work->args.k;
    work->args.out = work->args.q;
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
  try {
    auto& bench = *static_cast<Work*>(work);
    bench.args.q.data = tensors->q;
    bench.args.k.data = tensors->k;
    bench.args.v.data = tensors->v;
    bench.args.out.data = tensors->out;
    bench.args.lse.data = tensors->lse;
    magi::sm90::enqueue_forward(bench.args, bench.state, static_cast<cudaStream_t>(stream));
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

MAGI_EXPORT void magi_bench_free(void* work) { delete static_cast<Work*>(work); }
