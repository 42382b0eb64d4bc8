// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/order.cuh"
#include "kernels/mma/backward/step_walk.cuh"
#include "kernels/mma/matrix.cuh"
#include "kernels/sm90/half_rows.cuh"

namespace magi::mma {

/// A thread's part of dK and dV of an item: each warp has 32 keys and, 16 at a time, a share of the
/// columns.
template <BackwardConfig kC>
class KeyGradientBlocks {
 public:
  __device__ __forceinline__ explicit KeyGradientBlocks(const BackwardParams& params)
      : params_(params) {}

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (float& x : dk_[i]) x = 0.0f;
#pragma unroll
      for (float& x : dv_[i]) x = 0.0f;
    }
  }

  /// dV += P^T dO
  __device__ __forceinline__ void add_values(const std::uint8_t* p, const std::uint8_t* dout) {
    add(dv_, p, dout);
  }
  /// dK += dS^T Q
  __device__ __forceinline__ void add_keys(const std::uint8_t* ds, const std::uint8_t* q) {
    add(dk_, ds, q);
  }

  /// Writes the gradients, or a split's part of their sum. By all threads, which are done with what
  /// came before.
  __device__ __forceinline__ void write(const sm90::ItemInfo& item) {
    constexpr std::int32_t kWhole = sm90::kFirstSplit | sm90::kLastSplit;
    if ((item.flags & sm90::kHasSteps) == 0) {
      // The first split writes the zeros, the others have nothing to add.
      if ((item.flags & sm90::kFirstSplit) == 0) return;
    } else if ((item.flags & kWhole) != kWhole) {
      if (!add_splits(item)) return;
    }
    const sm90::KeyGradients& to = params_.key_gradients;
    const float scale = params_.softmax.score.softmax_scale;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (float& x : dk_[i]) x *= scale;
    }
    write_rows(dk_, to.dk, to.dim_qk, item);
    write_rows(dv_, to.dv, to.dim_v, item);
  }

 private:
  static constexpr int kThreads = 32 * kC.mma_warps;
  static constexpr int kKeyWarps = kC.keys / 32;
  static constexpr int kColumnWarps = kC.mma_warps / kKeyWarps;
  static constexpr int kStride = kStep * kColumnWarps;  ///< between a warp's blocks of columns

  __device__ __forceinline__ static int first_key() { return thread_index() / 32 % kKeyWarps * 32; }
  __device__ __forceinline__ static int first_column() {
    return thread_index() / 32 / kKeyWarps * kStep;
  }

  template <int kFloats>
  __device__ __forceinline__ static void add(float (&sum)[2][kFloats], const std::uint8_t* scores,
                                             const std::uint8_t* rows) {
    add_product<kC.type, kC.rows / kStep, 16, kStride>(
        sum, ColumnsA<kC.rows>{{scores, 0, first_key() / 8}},
        ColumnsB<kC.rows>{{rows, 0, first_column() / 8}});
  }

  /// Adds the sum of the splits before this one and, unless this is the last, stores it for the
  /// next. Returns whether it is whole. Waits for splits of lower items alone.
  __device__ __forceinline__ bool add_splits(const sm90::ItemInfo& item) {
    unsigned* semaphores = params_.key_gradients.split_semaphores;
    auto* place =
        reinterpret_cast<float4*>(params_.key_gradients.split_sums +
                                  std::int64_t{item.slot} * kC.keys * (kC.dim_qk + kC.dim_v)) +
        thread_index();
    auto* values = place + kC.keys * kC.dim_qk / 4;
    if (item.awaited_semaphore >= 0) {
      if (threadIdx.x == 0) {
        ptx::wait_semaphore(semaphores + item.awaited_semaphore,
                            static_cast<unsigned>(item.awaited_value));
      }
      __syncthreads();
    }
    if ((item.flags & sm90::kFirstSplit) == 0) {
      for_each_four(dk_, place, add_four);
      for_each_four(dv_, values, add_four);
    }
    if ((item.flags & sm90::kLastSplit) == 0) {
      for_each_four(dk_, place, store_four);
      for_each_four(dv_, values, store_four);
    }
    __syncthreads();
    if (threadIdx.x == 0) ptx::signal_semaphore(semaphores + item.semaphore);
    return (item.flags & sm90::kLastSplit) != 0;
  }

  __device__ __forceinline__ static void add_four(float* sum, float4* place) {
    const float4 before = __ldcg(place);
    sum[0] += before.x;
    sum[1] += before.y;
    sum[2] += before.z;
    sum[3] += before.w;
  }
  __device__ __forceinline__ static void store_four(const float* sum, float4* place) {
    __stcg(place, make_float4(sum[0], sum[1], sum[2], sum[3]));
  }
  template <int kFloats, typename Visit>
  __device__ __forceinline__ static void for_each_four(float (&sum)[2][kFloats], float4* place,
                                                       Visit visit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < kFloats; j += 4) {
        visit(sum[i] + j, place + (i * kFloats + j) / 4 * kThreads);
      }
    }
  }

  template <int kFloats>
  __device__ __forceinline__ void write_rows(const float (&sum)[2][kFloats],
                                             const sm90::StridedRows& rows, int dim,
                                             const sm90::ItemInfo& item) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_key() + 16 * i + 8 * half + thread_index() % 32 / 4;
        const std::int64_t key = item.key_begin + row;
        // Columns from the warp's first one on.
        const int num_columns = (row < item.num_keys ? dim : 0) - first_column();
        if (rows.is_float()) {
          write_floats(sum[i], half, num_columns,
                       sm90::row_at<float>(rows, key, item.kv_head) + first_column());
        } else {
          write_halves(sum[i], half, num_columns,
                       sm90::row_at<std::uint16_t>(rows, key, item.kv_head) + first_column());
        }
      }
    }
  }

  /// Writes one of the two rows of 16 that the thread has elements of, `half`.
  template <int kFloats>
  __device__ __forceinline__ void write_floats(const float (&sum)[kFloats], int half,
                                               int num_columns, float* target) const {
    const int column = thread_index() % 4 * 2;
#pragma unroll
    for (int j = 0; j < kFloats / 4; ++j) {
      const int place = j / 2 * kStride + j % 2 * 8 + column;
      if (place >= num_columns) continue;
      auto* pair = reinterpret_cast<float2*>(target + place);
      const float2 before = params_.key_gradients.is_adding ? *pair : make_float2(0.0f, 0.0f);
      *pair = make_float2(before.x + sum[4 * j + 2 * half], before.y + sum[4 * j + 2 * half + 1]);
    }
  }
  template <int kFloats>
  __device__ __forceinline__ static void write_halves(const float (&sum)[kFloats], int half,
                                                      int num_columns, std::uint16_t* target) {
#pragma unroll
    for (int j = 0; j < kFloats / 8; ++j) {
      const float* block = sum + 8 * j;
      const float values[8] = {block[0], block[1], block[2], block[3],
                               block[4], block[5], block[6], block[7]};
      sm90::write_half_row<kC.type>(values, half, thread_index() % 4 * 2, num_columns - kStride * j,
                                    target + kStride * j);
    }
  }

  const BackwardParams& params_;
  float dk_[2][kC.keys * kC.dim_qk / kThreads / 2];
  float dv_[2][kC.keys * kC.dim_v / kThreads / 2];
};

}  // namespace magi::mma
