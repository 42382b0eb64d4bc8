// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/order.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/sm90/global_memory.cuh"
#include "kernels/tile/stage.cuh"

namespace magi::sm90 {

/// Turns an item's dK and dV into output rows, or into a split's part of their sum.
template <BackwardConfig kC>
class BackwardEpilogue {
 public:
  using Keys = float[kC.dim_qk / 2];   ///< a thread's elements of dK
  using Values = float[kC.dim_v / 2];  ///< a thread's elements of dV

  __device__ __forceinline__ BackwardEpilogue(BackwardStorage<kC>& shared,
                                              const BackwardParams& params, int warpgroup)
      : shared_(shared),
        params_(params),
        warpgroup_(warpgroup),
        thread_(ptx::thread_index() & 127),
        place_(thread_) {}

  __device__ __forceinline__ void write(Keys& dk, Values& dv, const ItemInfo& item) const {
    constexpr std::int32_t kWhole = kFirstSplit | kLastSplit;
    const std::int32_t flags = ptx::uniform(item.flags);
    if ((flags & kHasSteps) == 0) {
      // The first split writes the zeros, the others have nothing to add.
      if ((flags & kFirstSplit) == 0) return;
    } else if ((flags & kWhole) != kWhole) {
      if (!add_splits(dk, dv, item, flags)) return;
    }
#pragma unroll
    for (int i = 0; i < kC.dim_qk / 2; ++i) dk[i] *= params_.softmax.score.softmax_scale;
    write_rows(dv, params_.keys.dv, params_.keys.dim_v, item);
    write_rows(dk, params_.keys.dk, params_.keys.dim_qk, item);
  }

 private:
  static constexpr int kKeyFloats = kC.keys * kC.dim_qk;   ///< floats of dK in a slot
  static constexpr int kValueFloats = kC.keys * kC.dim_v;  ///< floats of dV after them

  /// The thread's first float4 of dK in a slot.
  __device__ __forceinline__ float4* key_place(int slot) const {
    const std::int64_t begin = std::int64_t{slot} * (kKeyFloats + kValueFloats);
    return reinterpret_cast<float4*>(params_.keys.split_sums + begin) +
           warpgroup_ * (kC.dim_qk / 8) * 128 + thread_;
  }
  /// Its first float4 of dV in the slot where that of dK is at `keys`.
  __device__ __forceinline__ float4* value_place(float4* keys) const {
    return keys + kKeyFloats / 4 + warpgroup_ * ((kC.dim_v - kC.dim_qk) / 8) * 128;
  }

  /// Adds the sum of the splits before this one and, unless this is the last, stores it for the
  /// next. Returns whether it is whole. Each warpgroup does so with its keys: nobody waits for the
  /// other.
  __device__ __forceinline__ bool add_splits(Keys& dk, Values& dv, const ItemInfo& item,
                                             std::int32_t flags) const {
    float4* place = key_place(item.slot);
    if (item.awaited_semaphore >= 0) wait_semaphore(item.awaited_semaphore, item.awaited_value);
    if ((flags & kFirstSplit) == 0) {
      add(dk, place);
      add(dv, value_place(place));
    }
    if ((flags & kLastSplit) == 0) {
      store(dk, place);
      store(dv, value_place(place));
    }
    ptx::named_barrier_sync(kSplits + warpgroup_, 128);
    if (thread_ == 0) ptx::signal_semaphore(semaphore(item.semaphore));
    return (flags & kLastSplit) != 0;
  }

  /// This warpgroup's semaphore of a k tile and kv head.
  __device__ __forceinline__ unsigned* semaphore(std::int32_t index) const {
    return params_.keys.split_semaphores + index + warpgroup_;
  }

  /// Waits for splits of lower items, so that the lowest unfinished item never waits.
  __device__ __forceinline__ void wait_semaphore(std::int32_t index, std::int32_t value) const {
    if (thread_ == 0) ptx::wait_semaphore(semaphore(index), static_cast<unsigned>(value));
    ptx::named_barrier_sync(kSplits + warpgroup_, 128);
  }

  template <int kElements>
  __device__ __forceinline__ static void add(float (&sum)[kElements], const float4* place) {
#pragma unroll
    for (int i = 0; i < kElements / 4; ++i) {
      const float4 before = __ldcg(place + 128 * i);
      sum[4 * i] += before.x;
      sum[4 * i + 1] += before.y;
      sum[4 * i + 2] += before.z;
      sum[4 * i + 3] += before.w;
    }
  }

  template <int kElements>
  __device__ __forceinline__ static void store(const float (&sum)[kElements], float4* place) {
#pragma unroll
    for (int i = 0; i < kElements / 4; ++i) {
      __stcg(place + 128 * i,
             make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]));
    }
  }

  template <int kElements>
  __device__ __forceinline__ void write_rows(const float (&values)[kElements],
                                             const StridedRows& target, int dim,
                                             const ItemInfo& item) const {
    if (target.is_float()) {
      write_floats(values, row_at<float>(target, item.key_begin, item.kv_head), target, dim,
                   item.num_keys);
    } else {
      write_halves(values, row_at<std::uint16_t>(target, item.key_begin, item.kv_head), target, dim,
                   item.num_keys);
    }
  }

  template <int kElements>
  __device__ __forceinline__ void write_floats(const float (&values)[kElements], float* data,
                                               const StridedRows& target, int dim,
                                               int num_keys) const {
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const int key = 64 * warpgroup_ + place_.row + 8 * row;
      const int num_columns = key < num_keys ? dim - place_.column : 0;
      float* place = data + key * target.row_stride + place_.column;
#pragma unroll
      for (int c = 0; c < kElements / 4; ++c) {
        if (8 * c >= num_columns) continue;
        auto* pair = reinterpret_cast<float2*>(place + 8 * c);
        float2 value = make_float2(values[4 * c + 2 * row], values[4 * c + 2 * row + 1]);
        if (params_.keys.is_adding) {
          const float2 before = *pair;
          value = make_float2(value.x + before.x, value.y + before.y);
        }
        *pair = value;
      }
    }
  }

  /// Writes through this warp's rows of V's buffer, so that a row leaves in chunks of 16 bytes.
  template <int kElements>
  __device__ __forceinline__ void write_halves(const float (&values)[kElements],
                                               std::uint16_t* data, const StridedRows& target,
                                               int dim, int num_keys) const {
    constexpr int kPanelBytes = kC.keys * tile::kPanelRowBytes;
    const int thread = ptx::thread_index() & 127;
    const int lane = thread % 32;
    const int first_row = 64 * warpgroup_ + thread / 32 * 16;
    ptx::named_barrier_sync(kDkvEpilogue + warpgroup_, 128);
    tile::stage_rows<kC.type, kC.keys>(shared_.v, first_row, lane, values);
    __syncwarp();
    constexpr int kChunks = kElements / 4;
#pragma unroll 4
    for (int i = lane; i < 16 * kChunks; i += 32) {
      const int row = first_row + i / kChunks;
      const int chunk = i % kChunks;
      const auto* source = reinterpret_cast<const int4*>(shared_.v + chunk / 8 * kPanelBytes +
                                                         tile::swizzled_offset(row, chunk % 8));
      if (row < num_keys && 8 * chunk < dim) {
        *reinterpret_cast<int4*>(data + row * target.row_stride + 8 * chunk) = *source;
      }
    }
    __syncwarp();
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  const int warpgroup_;
  const int thread_;
  const tile::FragmentPlace place_;
};

}  // namespace magi::sm90
