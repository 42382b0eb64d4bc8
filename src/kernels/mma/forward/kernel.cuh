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
// A CTA is four or eight warps. Each has 16 rows of every 64 or 128 of the q tile; S, P and O stay
// in registers. Q and one or two K and V tiles are in shared memory. A step is one k tile:
//
//   K and V are there | barrier | the next K and V are loaded, S = Q K^T, P is made of S, O += P V
//
// The next tile may be of the next run or item. An item's Q is loaded behind the last S of the item
// before it and a barrier. Where there is room for one K and one V, V is loaded before S and the
// next K behind it and a barrier. Two CTAs of four warps fill each other's waits.
namespace magi::mma {

template <ForwardConfig kC>
struct ForwardStorage {
  static constexpr int kRuns = 4;
  alignas(128) std::uint8_t q[kC.q_bytes()];
  static constexpr int kStages = kC.kv_stages / 2;
  alignas(128) std::uint8_t k[kStages][kC.k_bytes()];
  alignas(128) std::uint8_t v[kStages][kC.v_bytes()];
  // Run n is in slot n % kRuns: one is multiplied, one loaded, one found.
  sm90::RunMessage runs[kRuns];
  const std::uint16_t* k_begin[kRuns];  ///< likewise: rows of the run's first tile
  const std::uint16_t* v_begin[kRuns];
  sm90::RowWeights weights[kC.rows()];
  sm90::ItemPlace places[kC.q_parts()][kRuns];  ///< of each run's item
  WalkState walk;
};

template <ForwardConfig kC>
class ForwardCta {
 public:
  using Storage = ForwardStorage<kC>;
  static constexpr int kThreads = 32 * kC.mma_warps;
  static constexpr int kGroups = kC.mma_warps / 4;        ///< of warps, each with 64 rows at a time
  static constexpr int kBlocks = kC.consumers / kGroups;  ///< blocks of 16 rows of a warp

  __device__ __forceinline__ ForwardCta(Storage& shared, const ForwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      walk().begin();
      find_run(0);
    }
    __syncthreads();
    load_queries(0);
    load_tile<true, kStages == 2>(0, 0, 0);
    while ((present().flags & sm90::kEndOfItems) == 0) {
      begin_item();
      int slot = 0;
      do {
        if (kKeepsSlot) slot = slot_;
      } while (!step());
      write_item(kKeepsSlot ? slot : (slot_ + Storage::kRuns - 1) % Storage::kRuns);
    }
  }

 private:
  using Scores = float[kBlocks][kC.keys / 2];
  using Copied = CopiedRows<kThreads>;
  static constexpr int kStages = Storage::kStages;
  /// Whether the slot of an item's last run is kept or computed, and how much the loop that copies
  /// Q is unrolled: found by trial, so that ptxas spills no registers.
  static constexpr bool kKeepsSlot = kC.dim_qk == 128;
  static constexpr int kUnrolled = kC.dim_qk == 128 ? 2 : 1;

  __device__ __forceinline__ RunWalk<kC> walk() const { return {shared_.walk, params_}; }
  /// The 64 rows of the q tile where a block of the warp lies.
  __device__ __forceinline__ static int part_of_tile(int block) {
    return block * kGroups + (kGroups > 1 ? thread_index() / 128 : 0);
  }
  __device__ __forceinline__ const sm90::RunMessage& present() const { return shared_.runs[slot_]; }
  __device__ __forceinline__ static int next_of(int slot) { return (slot + 1) % Storage::kRuns; }

  /// Finds the next run, and where its item's rows go. By one thread.
  __device__ __forceinline__ void find_run(int slot) const {
    sm90::RunMessage& run = shared_.runs[slot];
    walk().next(run);
    const int kv_head = run.head_begin / params_.heads_per_kv;
    const int key = run.k_end - kC.keys;
    shared_.k_begin[slot] = sm90::row_at<std::uint16_t>(params_.k_rows, key, kv_head);
    shared_.v_begin[slot] = sm90::row_at<std::uint16_t>(params_.v_rows, key, kv_head);
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

  __device__ __forceinline__ bool ends_run() const { return tile_ + 1 >= present().num_tiles; }

  /// Returns whether the item has ended. What is known of the run is read when it is needed: the
  /// products leave no registers.
  __device__ __forceinline__ bool step() {
    ptx::copy_wait_all();
    __syncthreads();
    if constexpr (kStages == 2) {
      load_next<true>();
    } else {
      load_tile<false, true>(slot_, tile_, 0);
    }
    Scores scores;
    const bool has_keys = present().num_tiles > 0;
    if (has_keys) multiply_keys(scores);
    const bool ends_item = ends_run() && (present().flags & sm90::kLastRun) != 0;
    if constexpr (kStages == 1) ptx::copy_wait_all();
    if (kStages == 1 || ends_item) __syncthreads();
    if (ends_item) load_queries(next_of(slot_));
    if constexpr (kStages == 1) load_next<false>();
    if (has_keys) attend(scores);
    if (kStages == 2) stage_ ^= 1;
    if (ends_run()) {
      slot_ = next_of(slot_);
      tile_ = 0;
    } else {
      ++tile_;
    }
    return ends_item;
  }

  __device__ __forceinline__ void load_queries(int slot) const {
    const sm90::RunMessage& run = shared_.runs[slot];
    if ((run.flags & sm90::kEndOfItems) != 0) return;
    const int num_rows = min(params_.rows_q - run.token_begin, kC.rows()) << params_.packed_shift;
    copy_tile<kC.rows(), kC.dim_qk, kUnrolled>(
        shared_.q, params_.dim_qk,
        packed_rows<kThreads>(params_.q_rows, run.token_begin, run.head_begin,
                              params_.packed_shift),
        [=](int row) { return row < num_rows; });
  }

  /// Loads K, V or both of a tile; with K, has the next run found where it is the last of its own.
  /// Keys in front of the run's first are zeros: they weigh 0, but what stands there may be NaN.
  template <bool kHasKeys, bool kHasValues>
  __device__ __forceinline__ void load_tile(int slot, int tile, int stage) const {
    const sm90::RunMessage& run = shared_.runs[slot];
    if ((run.flags & sm90::kEndOfItems) != 0) return;
    if (run.num_tiles > 0) {
      const int num_before = run.k0 - run.k_end + (tile + 1) * kC.keys;
      const auto is_there = [=](int row) { return row >= num_before; };
      if constexpr (kHasKeys) {
        copy_tile<kC.keys, kC.dim_qk>(shared_.k[stage], params_.dim_qk,
                                      copied(shared_.k_begin[slot], tile, params_.k_rows),
                                      is_there);
      }
      if constexpr (kHasValues) {
        copy_tile<kC.keys, kC.dim_v>(shared_.v[stage], params_.dim_v,
                                     copied(shared_.v_begin[slot], tile, params_.v_rows), is_there);
      }
    }
    if (kHasKeys && tile + 1 >= run.num_tiles && threadIdx.x == 0) find_run(next_of(slot));
  }

  template <bool kHasValues>
  __device__ __forceinline__ void load_next() const {
    const bool goes_on = !ends_run();
    load_tile<true, kHasValues>(goes_on ? slot_ : next_of(slot_), goes_on ? tile_ + 1 : 0,
                                kStages == 2 ? stage_ ^ 1 : 0);
  }

  /// The rows of a tile that the thread copies; `begin`: rows of the run's first tile.
  __device__ __forceinline__ static Copied copied(const std::uint16_t* begin, int tile,
                                                  const sm90::StridedRows& rows) {
    const int row = Copied::first() - tile * kC.keys;
    return {begin + row * rows.row_stride + 8 * (thread_index() % Copied::kChunks),
            Copied::kPassRows * rows.row_stride};
  }

  __device__ __forceinline__ void multiply_keys(Scores& scores) const {
#pragma unroll
    for (auto& block : scores) {
#pragma unroll
      for (float& x : block) x = 0.0f;
    }
    const int warp = thread_index() / 32;
    add_product<kC.type, kC.dim_qk / kStep, 64 * kGroups, kStep>(
        scores, RowsA<kC.rows()>{{shared_.q, 16 * warp, 0}},
        RowsB<kC.keys>{{shared_.k[stage_], 0, 0}});
  }

  /// Turns scores into P and adds P V.
  __device__ __forceinline__ void attend(Scores& scores) {
    const sm90::RunMessage& run = present();
    const bool is_masked = tile_ < run.full_begin || tile_ >= run.full_end;
    std::uint32_t packed[kBlocks][kC.keys / 4];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (is_masked) {
        sm90::mask_by_run<kC.keys>(scores[i], run,
                                   {64 * part_of_tile(i), run.k_end - (tile_ + 1) * kC.keys},
                                   params_.packed_shift);
      }
      const bool has_moved = state_[i].template raise_base<kC.keys>(scores[i], params_.score);
      if (i + 1 < kBlocks && has_moved) state_[i].rescale_rows(out_[i]);
      state_[i].template exponentiate<kC.keys>(scores[i], params_.score);
      tile::pack_fragments<kC.type, kC.keys>(scores[i], packed[i]);
      // The last time here: a branch keeps the exponentials out of the product's registers.
      if (i + 1 == kBlocks && has_moved) state_[i].rescale_rows(out_[i]);
    }
    add_product<kC.type, kC.keys / kStep, kStep, kStep>(
        out_, PackedA<kBlocks, kC.keys / 4>{packed}, ColumnsB<kC.keys>{{shared_.v[stage_], 0, 0}});
  }

  __device__ __forceinline__ void write_item(int slot) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const sm90::Epilogue<kC, Storage> epilogue(shared_, params_, part_of_tile(i), slot);
      epilogue.finish_rows(state_[i]);
      epilogue.write(out_[i]);
    }
  }

  Storage& shared_;
  const ForwardParams& params_;
  int slot_ = 0;   ///< of the run whose tile is multiplied
  int tile_ = 0;   ///< of the run
  int stage_ = 0;  ///< where it lies
  sm90::RowState<kC> state_[kBlocks];
  float out_[kBlocks][kC.dim_v / 2];
};

/// `Instance` is a type with a `static constexpr ForwardConfig kConfig`.
template <typename Instance>
__global__ void __launch_bounds__(32 * Instance::kConfig.mma_warps, Instance::kConfig.ctas_per_sm())
    forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(128) std::uint8_t shared_bytes[];
  constexpr ForwardConfig kC = Instance::kConfig;
  ForwardCta<kC>(*reinterpret_cast<ForwardStorage<kC>*>(shared_bytes), params).run();
}

}  // namespace magi::mma
