// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/mma/forward/run_walk.cuh"
#include "kernels/mma/matrix.cuh"
#include "kernels/sm90/forward/epilogue.cuh"
#include "kernels/sm90/forward/run_mask.cuh"
#include "kernels/sm90/forward/softmax.cuh"

// out = softmax(scale * Q K^T + mask) V and its lse on any GPU since compute capability 8.0: the
// lists, masks, softmax and results of kernels/sm90/forward, with mma.sync and cp.async.
//
// A CTA is four warps. Each has 16 of each 64 rows of the q tile; S, P and O stay in registers. Q,
// one K and one V tile are in shared memory. A step is one k tile:
//
//   K is there | barrier | V is loaded, S = Q K^T | V is there, barrier | the next K is loaded, P
//   is made of S, O += P V
//
// The next K may be that of the next run or item, whose Q is then loaded too. Two CTAs of a
// multiprocessor fill each other's waits.
namespace magi::mma {

inline constexpr int kForwardThreads = 128;

template <ForwardConfig kC>
struct ForwardStorage {
  alignas(128) std::uint8_t q[kC.q_bytes()];
  alignas(128) std::uint8_t k[kC.k_bytes()];
  alignas(128) std::uint8_t v[kC.v_bytes()];
  // Run n is in slot n % 2: the next one is found while its predecessor is under way.
  sm90::RunMessage runs[2];
  int kv_heads[2];  ///< likewise
  sm90::RowWeights weights[kC.rows()];
  sm90::ItemPlace places[kC.q_parts()][2];  ///< of each run's item
  WalkState walk;
};

template <ForwardConfig kC>
class ForwardCta {
 public:
  using Storage = ForwardStorage<kC>;
  static constexpr int kBlocks = kC.consumers;  ///< blocks of 16 rows of a warp, 64 rows apart

  __device__ __forceinline__ ForwardCta(Storage& shared, const ForwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      walk().begin();
      find_run(0);
    }
    __syncthreads();
    load_queries();
    load_keys();
    while ((present().flags & sm90::kEndOfItems) == 0) {
      if (tile_ == 0 && (present().flags & sm90::kFirstRun) != 0) begin_item();
      step();
    }
  }

 private:
  using Scores = float[kBlocks][kC.keys / 2];

  __device__ __forceinline__ RunWalk<kC> walk() const { return {shared_.walk, params_}; }
  __device__ __forceinline__ const sm90::RunMessage& present() const { return shared_.runs[slot_]; }

  /// Finds the next run, and where its item's rows go. By one thread.
  __device__ __forceinline__ void find_run(int slot) const {
    sm90::RunMessage& run = shared_.runs[slot];
    walk().next(run);
    shared_.kv_heads[slot] = run.head_begin / params_.heads_per_kv;
#pragma unroll
    for (auto& place : shared_.places) place[slot] = {run.token_begin, run.head_begin, run.partial};
  }

  __device__ __forceinline__ void begin_item() {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      state_[i] = {};
#pragma unroll
      for (float& x : out_[i]) x = 0.0f;
    }
  }

  __device__ __forceinline__ void step() {
    const int slot = slot_;
    const int key = tile_key();
    const bool has_keys = present().num_tiles > 0;
    const bool is_masked = tile_ < present().full_begin || tile_ >= present().full_end;
    const bool ends_run = tile_ + 1 >= present().num_tiles;
    const bool ends_item = ends_run && (present().flags & sm90::kLastRun) != 0;
    ptx::copy_wait_all();
    __syncthreads();
    load_values();
    if (ends_run && threadIdx.x == 0) find_run(slot ^ 1);
    Scores scores;
    if (has_keys) multiply_keys(scores);
    ptx::copy_wait_all();
    __syncthreads();
    slot_ ^= ends_run ? 1 : 0;
    tile_ = ends_run ? 0 : tile_ + 1;
    if (ends_item) load_queries();
    load_keys();
    if (has_keys) attend(scores, shared_.runs[slot], key, is_masked);
    if (ends_item) write_item(slot);
  }

  __device__ __forceinline__ int tile_key() const {
    return present().k_end - (tile_ + 1) * kC.keys;
  }

  __device__ __forceinline__ void load_queries() const {
    const sm90::RunMessage& run = present();
    if ((run.flags & sm90::kEndOfItems) != 0) return;
    const int num_rows = min(params_.rows_q - run.token_begin, kC.rows()) << params_.packed_shift;
    copy_tile<kC.rows(), kC.dim_qk>(
        shared_.q, params_.dim_qk,
        packed_rows<kForwardThreads>(params_.q_rows, run.token_begin, run.head_begin,
                                     params_.packed_shift),
        [=](int row) { return row < num_rows; });
  }

  /// Loads K or V of the present tile. Keys in front of the run's first are zeros: they weigh 0,
  /// but what stands there may be NaN.
  template <int kDim>
  __device__ __forceinline__ void load_tile(std::uint8_t* tile, const sm90::StridedRows& rows,
                                            int num_columns) const {
    const sm90::RunMessage& run = present();
    if (run.num_tiles == 0) return;
    const int key = tile_key();
    const int num_before = run.k0 - key;
    copy_tile<kC.keys, kDim>(tile, num_columns,
                             packed_rows<kForwardThreads>(rows, key, shared_.kv_heads[slot_], 0),
                             [=](int row) { return row >= num_before; });
  }
  __device__ __forceinline__ void load_keys() const {
    load_tile<kC.dim_qk>(shared_.k, params_.k_rows, params_.dim_qk);
  }
  __device__ __forceinline__ void load_values() const {
    load_tile<kC.dim_v>(shared_.v, params_.v_rows, params_.dim_v);
  }

  __device__ __forceinline__ void multiply_keys(Scores& scores) const {
#pragma unroll
    for (auto& block : scores) {
#pragma unroll
      for (float& x : block) x = 0.0f;
    }
    const int warp = ptx::thread_index() / 32;
    add_product<kC.type, kC.dim_qk / kStep, 64, kStep>(
        scores, RowsA<kC.rows()>{{shared_.q, 16 * warp, 0}}, RowsB<kC.keys>{{shared_.k, 0, 0}});
  }

  /// Turns scores into P and adds P V.
  __device__ __forceinline__ void attend(Scores& scores, const sm90::RunMessage& run, int key,
                                         bool is_masked) {
    std::uint32_t packed[kBlocks][kC.keys / 4];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (is_masked) {
        sm90::mask_by_run<kC.keys>(scores[i], run, {64 * i, key}, params_.packed_shift);
      }
      if (state_[i].template raise_base<kC.keys>(scores[i], params_.score)) {
        state_[i].rescale_rows(out_[i]);
      }
      state_[i].template exponentiate<kC.keys>(scores[i], params_.score);
      tile::pack_fragments<kC.type, kC.keys>(scores[i], packed[i]);
    }
    add_packed_product<kC.type>(out_, packed, ColumnsB<kC.keys>{{shared_.v, 0, 0}});
  }

  __device__ __forceinline__ void write_item(int slot) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const sm90::Epilogue<kC, Storage> epilogue(shared_, params_, i, slot);
      epilogue.finish_rows(state_[i]);
      epilogue.write(out_[i]);
    }
  }

  Storage& shared_;
  const ForwardParams& params_;
  int slot_ = 0;  ///< of the run whose tile is loaded or multiplied
  int tile_ = 0;  ///< of the run
  sm90::RowState<kC> state_[kBlocks];
  float out_[kBlocks][kC.dim_v / 2];
};

/// `Instance` is a type with a `static constexpr ForwardConfig kConfig`.
template <typename Instance>
__global__ void __launch_bounds__(kForwardThreads, Instance::kConfig.ctas_per_sm())
    forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(128) std::uint8_t shared_bytes[];
  constexpr ForwardConfig kC = Instance::kConfig;
  ForwardCta<kC>(*reinterpret_cast<ForwardStorage<kC>*>(shared_bytes), params).run();
}

}  // namespace magi::mma
