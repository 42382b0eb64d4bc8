// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/mma/backward/key_gradients.cuh"
#include "kernels/mma/backward/step_walk.cuh"
#include "kernels/mma/matrix.cuh"
#include "kernels/schedule/device/seen_rows.cuh"
#include "kernels/sm90/backward/scores.cuh"

// dK, dV and sums of dQ for one k tile and kv head per item, on any GPU since compute capability
// 8.0: the lists, scores and sums of kernels/sm90/backward, with mma.sync and cp.async.
//
// Warps form a grid of blocks of 32 rows. K and V of the item stay in shared memory, dK and dV in
// registers. A step is one q tile of a head group:
//
//   barrier | S = Q K^T, P = exp(S - lse), dP = dO V^T, dS = P (dP - delta); P and dS go to shared
//   memory | barrier | the next Q and dO are loaded, dV += P^T dO, dK += dS^T Q, dQ = dS K is added
//   to its sum in device memory
//
// With one stage of dO or Q, the next one is loaded behind dV or dK and a barrier. CTAs of four
// warps fill each other's waits.
namespace magi::mma {

template <BackwardConfig kC>
struct BackwardStorage {
  static constexpr int kSteps = 4;
  alignas(128) std::uint8_t k[kC.k_bytes()];
  alignas(128) std::uint8_t v[kC.v_bytes()];
  alignas(128) std::uint8_t q[kC.q_stages][kC.q_bytes()];
  alignas(128) std::uint8_t dout[kC.dout_stages][kC.dout_bytes()];
  alignas(128) std::uint8_t p[kC.score_bytes()];
  alignas(128) std::uint8_t ds[kC.score_bytes()];
  alignas(16) float lse_log2[2][kC.rows];
  alignas(16) float delta[2][kC.rows];
  // Step n is in slot n % kSteps: one is found, one under way, the end of one is told.
  Step steps[kSteps];
  sm90::ItemInfo item;
  StepState walk;
};

template <BackwardConfig kC>
class BackwardCta {
 public:
  static constexpr int kThreads = 32 * kC.mma_warps;
  static constexpr int kRowWarps = kC.rows / 32;  ///< warps along rows of S, dP and dQ
  static constexpr int kScoreWarps = kC.mma_warps / kRowWarps;
  static constexpr int kScoreKeys = kC.keys / kScoreWarps;  ///< of a warp
  static constexpr int kQueryStride = kStep * kScoreWarps;  ///< between columns of dQ of a warp
  using Gradients = KeyGradientBlocks<kC>;
  using Scores = float[2][kScoreKeys / 2];
  static_assert(kC.rows == 64 && kScoreKeys % kStep == 0);

  __device__ __forceinline__ BackwardCta(BackwardStorage<kC>& shared, const BackwardParams& params)
      : shared_(shared), params_(params), gradients_(params) {}

  __device__ __forceinline__ void run() {
    while (true) {
      if (threadIdx.x == 0) walk().take_item(shared_.item, shared_.steps[0]);
      __syncthreads();
      if ((shared_.item.flags & sm90::kEndOfItems) != 0) break;
      gradients_.clear();
      if ((shared_.item.flags & sm90::kHasSteps) != 0) run_steps();
      gradients_.write(shared_.item);
      __syncthreads();
    }
  }

 private:
  __device__ __forceinline__ StepWalk<kC> walk() const { return {shared_.walk, params_}; }
  __device__ __forceinline__ static int warp() { return thread_index() / 32; }
  __device__ __forceinline__ static int lane() { return thread_index() % 32; }
  /// The warp's first row and first key of S and dP.
  __device__ __forceinline__ static int score_row() { return warp() % kRowWarps * 32; }
  __device__ __forceinline__ static int score_key() { return warp() / kRowWarps * kScoreKeys; }
  __device__ __forceinline__ bool has_softcap() const {
    return params_.softmax.score.cap_scale > 0.0f;
  }
  __device__ __forceinline__ Step& step_of(int number) const {
    return shared_.steps[number % BackwardStorage<kC>::kSteps];
  }
  __device__ __forceinline__ std::uint8_t* queries(int number) const {
    return shared_.q[kC.q_stages == 1 ? 0 : number & 1];
  }

  __device__ __forceinline__ std::uint8_t* dout(int number) const {
    return shared_.dout[kC.dout_stages == 1 ? 0 : number & 1];
  }

  __device__ __forceinline__ void run_steps() {
    load_keys();
    load_queries(0);
    load_dout(0);
    bool has_next = true;
    for (int number = 0; has_next; ++number) {
      ptx::copy_wait_all();
      __syncthreads();
      if (threadIdx.x == 0) {
        walk().next(step_of(number + 1), shared_.item.key_begin);
      } else if (threadIdx.x == kThreads - 1 && number > 0) {
        signal(step_of(number - 1));
      }
      make_scores(number);
      __syncthreads();
      if constexpr (kC.dim_qk > 192) number = found_anew(number);
      has_next = (step_of(number + 1).flags & kIsEnd) == 0;
      if (kC.q_stages > 1 && has_next) load_queries(number + 1);
      if (kC.dout_stages > 1 && has_next) load_dout(number + 1);
      gradients_.add_values(shared_.p, dout(number));
      if constexpr (kC.dout_stages == 1) {
        __syncthreads();
        if (has_next) load_dout(number + 1);
      }
      gradients_.add_keys(shared_.ds, queries(number));
      if constexpr (kC.q_stages == 1) {
        __syncthreads();
        if (has_next) load_queries(number + 1);
      }
      add_dq(step_of(number));
      if (!has_next) {
        __syncthreads();
        if (threadIdx.x == 0) signal(step_of(number));
      }
    }
  }

  /// Returns `number`; places made of it are computed again, which leaves registers.
  __device__ __forceinline__ static int found_anew(int number) {
    auto hidden = static_cast<std::uint32_t>(number);
    ptx::hide(hidden);
    return static_cast<int>(hidden);
  }

  /// Says that the step's dQ has been added by all threads.
  __device__ __forceinline__ void signal(const Step& step) const {
    const sm90::DqOrder& order = params_.dq_order;
    if (order.is_ordered) ptx::signal_semaphore(order.semaphores + step.semaphore);
  }

  /// Copies K and V of the item; keys that nobody sees are zeros.
  __device__ __forceinline__ void load_keys() const {
    const sm90::ItemInfo& item = shared_.item;
    const auto rows_of = [&](const sm90::StridedRows& rows) {
      return packed_rows<kThreads>(rows, item.key_begin, item.kv_head, 0);
    };
    const auto is_there = [seen = params_.seen.keys, begin = item.key_begin, count = item.num_keys](
                              int row) { return row < count && is_seen(seen, begin + row); };
    copy_tile<kC.keys, kC.dim_qk>(shared_.k, params_.key_gradients.dim_qk,
                                  rows_of(params_.tensors.k), is_there);
    copy_tile<kC.keys, kC.dim_v>(shared_.v, params_.key_gradients.dim_v, rows_of(params_.tensors.v),
                                 is_there);
  }
  __device__ __forceinline__ static bool is_seen(const std::uint32_t* seen, int row) {
    return seen == nullptr || (__ldg(seen + row / kSeenBits) >> row % kSeenBits & 1) != 0;
  }

  /// Copies rows of a step's q tile; those that nobody sees are zeros.
  template <int kDim>
  __device__ __forceinline__ void load_rows(std::uint8_t* tile, const Step& step, int num_columns,
                                            const sm90::StridedRows& rows) const {
    const int shift = params_.query.packed_shift;
    const int token = step.q_tile << params_.query.token_shift;
    const int num_rows = min(params_.query.rows_q - token, kC.rows) << shift;
    const auto copied = packed_rows<kThreads>(rows, token, step.group << shift, shift);
    const std::uint32_t* seen = (step.flags & kIsMasked) != 0 ? params_.seen.queries : nullptr;
    if (seen == nullptr) {
      copy_tile<kC.rows, kDim>(tile, num_columns, copied, [=](int row) { return row < num_rows; });
    } else {
      copy_tile<kC.rows, kDim>(tile, num_columns, copied, [=](int row) {
        return row < num_rows && is_seen(seen, token + (row >> shift));
      });
    }
  }
  __device__ __forceinline__ void load_queries(int number) const {
    const Step& step = step_of(number);
    load_rows<kC.dim_qk>(queries(number), step, params_.key_gradients.dim_qk, params_.tensors.q);
    // Sixteen threads copy lse_log2, sixteen delta.
    if (thread_index() >= 32) return;
    const bool is_delta = thread_index() >= 16;
    const std::int64_t row =
        (std::int64_t{step.group} * params_.query.num_q_tiles + step.q_tile) * kC.rows +
        lane() % 16 * 4;
    const float* source = is_delta ? params_.softmax.delta : params_.softmax.lse_log2;
    float* target = is_delta ? shared_.delta[number & 1] : shared_.lse_log2[number & 1];
    ptx::copy_or_clear(ptx::shared_address(target + lane() % 16 * 4), source + row, true);
  }
  __device__ __forceinline__ void load_dout(int number) const {
    load_rows<kC.dim_v>(dout(number), step_of(number), params_.key_gradients.dim_v,
                        params_.tensors.dout);
  }

  /// Sets accumulators to a value per row of q.
  __device__ __forceinline__ static void spread(Scores& x, const float* values) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* row = values + score_row() + 16 * i + lane() / 4;
      const float pair[2] = {row[0], row[8]};
#pragma unroll
      for (int j = 0; j < kScoreKeys / 2; ++j) x[i][j] = pair[j / 2 % 2];
    }
  }

  /// Makes P and dS / softmax_scale of a step, and stores both in 16 bits.
  __device__ __forceinline__ void make_scores(int number) const {
    const Step& step = step_of(number);
    const float* lse_log2 = shared_.lse_log2[number & 1];
    Scores p;
    spread(p, lse_log2);
    multiply<kC.dim_qk>(p, queries(number), shared_.k);
    if (has_softcap()) {
      cap(p, lse_log2);
    }
    exponentiate(p, step);
    store(shared_.p, p);
    Scores dp;
    spread(dp, shared_.delta[number & 1]);
    multiply<kC.dim_v>(dp, dout(number), shared_.v);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < kScoreKeys / 2; ++j) dp[i][j] *= p[i][j];
    }
    if (has_softcap()) weigh(dp, p, lse_log2);
    store(shared_.ds, dp);
  }

  /// x += A B^T of the warp's rows of A and keys of B.
  template <int kDim>
  __device__ __forceinline__ static void multiply(Scores& x, const std::uint8_t* rows,
                                                  const std::uint8_t* keys) {
    add_product<kC.type, kDim / kStep, 16, kStep>(x, RowsA<kC.rows>{{rows, score_row(), 0}},
                                                  RowsB<kC.keys>{{keys, score_key(), 0}});
  }

  /// Calls visit(i, j, lse_log2 of the element's row).
  template <typename Visit>
  __device__ __forceinline__ static void for_each_score(const float* lse_log2, Visit visit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* row = lse_log2 + score_row() + 16 * i + lane() / 4;
      const float pair[2] = {row[0], row[8]};
#pragma unroll
      for (int j = 0; j < kScoreKeys / 2; ++j) visit(i, j, pair[j / 2 % 2]);
    }
  }
  /// Turns S + lse_log2 into f(S) + lse_log2.
  __device__ __forceinline__ void cap(Scores& x, const float* lse_log2) const {
    const sm90::ScoreScale& scale = params_.softmax.score;
    for_each_score(lse_log2, [&](int i, int j, float lse) {
      x[i][j] = sm90::capped(x[i][j] - lse, scale) + lse;
    });
  }
  __device__ __forceinline__ void weigh(Scores& dp, const Scores& p, const float* lse_log2) const {
    const sm90::ScoreScale& scale = params_.softmax.score;
    for_each_score(lse_log2, [&](int i, int j, float lse) {
      dp[i][j] *= sm90::softcap_slope(p[i][j], lse, scale);
    });
  }

  __device__ __forceinline__ void exponentiate(Scores& x, const Step& step) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (float& score : x[i]) score *= params_.softmax.score.exponent_scale;
      if ((step.flags & kIsMasked) != 0) mask(x[i], step, score_row() + 16 * i);
      sm90::exponentiate(x[i]);
    }
  }
  /// Sets what the step's band hides to -infinity, in 16 rows from `first_row` on.
  __device__ __forceinline__ void mask(float (&x)[kScoreKeys / 2], const Step& step,
                                       int first_row) const {
    const BandSlice& band = step.band;
    const int key = shared_.item.key_begin + score_key() + lane() % 4 * 2;
    int low[tile::kRowsPerThread];
    int high[tile::kRowsPerThread];
#pragma unroll
    for (int half = 0; half < tile::kRowsPerThread; ++half) {
      const int row = first_row + lane() / 4 + 8 * half;
      const int token =
          (step.q_tile << params_.query.token_shift) + (row >> params_.query.packed_shift);
      const bool is_inside = token >= band.q0 && token < band.q1;
      low[half] = (is_inside ? max(band.k0, token + band.d_min) : 0) - key;
      high[half] = (is_inside ? min(band.k1, token + band.d_max + 1) : 0) - key;
    }
    tile::mask_rows<kScoreKeys>(x, low, high);
  }

  /// Stores scores in 16 bits: a tile of rows and, in panels of 64, keys.
  __device__ __forceinline__ static void store(std::uint8_t* tile, const Scores& x) {
    const int key = score_key();
    const std::uint32_t panel =
        ptx::shared_address(tile) +
        static_cast<std::uint32_t>(key / 64 * (kC.rows * tile::kPanelRowBytes) + lane() % 4 * 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = score_row() + 16 * i + lane() / 4;
#pragma unroll
      for (int c = 0; c < kScoreKeys / 8; ++c) {
        const std::uint32_t address = panel + tile::swizzled_offset(row, key % 64 / 8 + c);
        const float* pair = x[i] + 4 * c;
        ptx::store_shared(address, ptx::pack_half2<kC.type>(pair[0], pair[1]));
        ptx::store_shared(address + 8 * tile::kPanelRowBytes,
                          ptx::pack_half2<kC.type>(pair[2], pair[3]));
      }
    }
  }

  /// Multiplies dQ = dS K of a step and adds it to its sum.
  __device__ __forceinline__ void add_dq(const Step& step) const {
    float dq[2][kC.dim_qk / kScoreWarps / 2] = {};
    const int column = kStep * (warp() / kRowWarps);
    add_product<kC.type, kC.keys / kStep, 16, kQueryStride>(
        dq, RowsA<kC.rows>{{shared_.ds, score_row(), 0}},
        ColumnsB<kC.keys>{{shared_.k, 0, column / 8}});
    if (params_.dq_order.is_ordered) {
      if (threadIdx.x == 0 && step.value != 0) {
        ptx::wait_semaphore(params_.dq_order.semaphores + step.semaphore,
                            static_cast<unsigned>(step.value));
      }
      __syncthreads();
    }
    const std::int64_t sum = std::int64_t{step.group} * params_.query.num_q_tiles + step.q_tile;
    float* target =
        params_.dq.sums + sum * (kC.rows * kC.dim_qk) + column / 8 * 512 + score_row() * 2 + lane();
    if ((step.flags & kIsFirstOfSum) != 0) {
      for_each_sum(dq, target, [](float* place, float x) { *place = x; });
    } else {
      for_each_sum(dq, target, [](float* place, float x) { atomicAdd(place, x); });
    }
  }
  /// Calls visit(place, element): in a chunk of 8 columns the four elements of 64 rows' threads
  /// follow one another (SumRows of dq_convert_kernel.cuh).
  template <int kFloats, typename Visit>
  __device__ __forceinline__ static void for_each_sum(const float (&dq)[2][kFloats], float* target,
                                                      Visit visit) {
#pragma unroll
    for (int j = 0; j < kFloats; ++j) {
      float* place = target + (j / 8 * (kQueryStride / 8) + j / 4 % 2) * 512 + j % 4 * 128;
#pragma unroll
      for (int i = 0; i < 2; ++i) visit(place + 32 * i, dq[i][j]);
    }
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  Gradients gradients_;
};

/// `Instance` is a type with a `static constexpr BackwardConfig kConfig`.
template <typename Instance>
__global__ void __launch_bounds__(32 * Instance::kConfig.mma_warps, Instance::kConfig.ctas_per_sm())
    backward_kernel(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(128) std::uint8_t shared_bytes[];
  constexpr BackwardConfig kC = Instance::kConfig;
  BackwardCta<kC>(*reinterpret_cast<BackwardStorage<kC>*>(shared_bytes), params).run();
}

}  // namespace magi::mma
