// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/order.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/tile/descriptor.cuh"
#include "kernels/tile/fragment.cuh"

namespace magi::sm90 {

/// Turns an item's dK and dV into output rows, or into a piece of them.
template <BackwardConfig kC>
class BackwardEpilogue {
 public:
  using Keys = float[kC.dim_qk / 2];   ///< a thread's part of dK
  using Values = float[kC.dim_v / 2];  ///< of dV

  __device__ __forceinline__ BackwardEpilogue(BackwardStorage<kC>& shared,
                                              const BackwardParams& params, int warpgroup)
      : shared_(shared),
        params_(params),
        warpgroup_(warpgroup),
        thread_(ptx::thread_index() & 127),
        place_(thread_) {}

  __device__ __forceinline__ void write(Keys& dk, Values& dv, const ItemInfo& item) const {
    constexpr std::int32_t kWhole = kFirstPiece | kLastPiece;
    const std::int32_t flags = ptx::uniform(item.flags);
    if ((flags & kHasSteps) == 0) {
      // Of nothing but zeros the first piece is all.
      if ((flags & kFirstPiece) == 0) return;
    } else if ((flags & kWhole) != kWhole) {
      if (!pass_on(dk, dv, item, flags)) return;
    }
#pragma unroll
    for (int i = 0; i < kC.dim_qk / 2; ++i) dk[i] *= params_.score.softmax_scale;
    write_rows(dv, params_.dv, params_.dim_v, item);
    write_rows(dk, params_.dk, params_.dim_qk, item);
  }

 private:
  static constexpr int kKeyFloats = kC.keys * kC.dim_qk;   ///< of dK in a slot
  static constexpr int kValueFloats = kC.keys * kC.dim_v;  ///< of dV behind it

  /// The thread's first float4 of dK in a slot.
  __device__ __forceinline__ float4* key_place(int slot) const {
    const std::int64_t begin = std::int64_t{slot} * (kKeyFloats + kValueFloats);
    return reinterpret_cast<float4*>(params_.pieces + begin) + warpgroup_ * (kC.dim_qk / 8) * 128 +
           thread_;
  }
  /// Its first float4 of dV in the slot where that of dK is at `keys`.
  __device__ __forceinline__ float4* value_place(float4* keys) const {
    return keys + kKeyFloats / 4 + warpgroup_ * ((kC.dim_v - kC.dim_qk) / 8) * 128;
  }

  /// Adds the pieces before this one, in their order, and hands the sum to the next; true where it
  /// is whole. Each warpgroup does so with its keys: nobody waits for the other one.
  __device__ __forceinline__ bool pass_on(Keys& dk, Values& dv, const ItemInfo& item,
                                          std::int32_t flags) const {
    float4* place = key_place(item.slot);
    if (item.awaited >= 0)
      await(params_.piece_counts + item.awaited + warpgroup_, item.num_awaited);
    if ((flags & kFirstPiece) == 0) {
      add(dk, place);
      add(dv, value_place(place));
    }
    if ((flags & kLastPiece) == 0) {
      store(dk, place);
      store(dv, value_place(place));
    }
    ptx::named_barrier_sync(kPieces + warpgroup_, 128);
    if (thread_ == 0) ptx::add_release(params_.piece_counts + item.counter + warpgroup_, 1);
    return (flags & kLastPiece) != 0;
  }

  /// NOTE: whoever is awaited is of a lower item.
  __device__ __forceinline__ void await(const unsigned* counter, std::int32_t count) const {
    if (thread_ == 0) {
      while (ptx::load_acquire(counter) != static_cast<unsigned>(count)) {
      }
    }
    ptx::named_barrier_sync(kPieces + warpgroup_, 128);
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
                                             const GradientRows& target, int dim,
                                             const ItemInfo& item) const {
    const std::int64_t begin =
        item.key_begin * target.row_stride + item.kv_head * target.head_stride;
    if (target.is_float) {
      write_floats(values, static_cast<float*>(target.data) + begin, target, dim, item.num_keys);
    } else {
      write_halves(values, static_cast<std::uint16_t*>(target.data) + begin, target, dim,
                   item.num_keys);
    }
  }

  template <int kElements>
  __device__ __forceinline__ void write_floats(const float (&values)[kElements], float* data,
                                               const GradientRows& target, int dim,
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
        if (target.is_added) {
          const float2 before = *pair;
          value = make_float2(value.x + before.x, value.y + before.y);
        }
        *pair = value;
      }
    }
  }

  /// Through this warp's rows of V's buffer, so that a row leaves in chunks of 16 bytes.
  template <int kElements>
  __device__ __forceinline__ void write_halves(const float (&values)[kElements],
                                               std::uint16_t* data, const GradientRows& target,
                                               int dim, int num_keys) const {
    constexpr int kPanelBytes = kC.keys * tile::kPanelRowBytes;
    const int thread = ptx::thread_index() & 127;
    const int lane = thread % 32;
    const int first_row = 64 * warpgroup_ + thread / 32 * 16;
    ptx::named_barrier_sync(kDkvEpilogue + warpgroup_, 128);
#pragma unroll
    for (int c = 0; c < kElements / 4; c += 2) {
      const std::uint32_t address = ptx::shared_address(shared_.v + c / 8 * kPanelBytes) +
                                    tile::swizzled_offset(first_row + lane % 16, c % 8 + lane / 16);
      const float* value = values + 4 * c;
      ptx::store_matrix_x4(address, ptx::pack_half2<kC.type>(value[0], value[1]),
                           ptx::pack_half2<kC.type>(value[2], value[3]),
                           ptx::pack_half2<kC.type>(value[4], value[5]),
                           ptx::pack_half2<kC.type>(value[6], value[7]));
    }
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
