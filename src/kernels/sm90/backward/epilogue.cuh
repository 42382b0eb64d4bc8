// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/order.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/sm90/global_memory.cuh"
#include "kernels/tile/stage.cuh"

namespace magi::sm90 {

/// Turns a warpgroup's dK and dV of an item into output rows, or adds them to the sum of splits:
/// all columns of its keys or, if warpgroups share keys, its half of the columns of all keys.
template <BackwardConfig kC>
class BackwardEpilogue {
 public:
  using Keys = float[kC.dk_columns() / 2];    ///< a thread's elements of dK
  using Values = float[kC.dv_columns() / 2];  ///< a thread's elements of dV

  __device__ __forceinline__ BackwardEpilogue(BackwardStorage<kC>& shared,
                                              const BackwardParams& params, int warpgroup)
      : shared_(shared), params_(params), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void write(Keys& dk, Values& dv, const ItemInfo& item) const {
    constexpr std::int32_t kWhole = kFirstSplit | kLastSplit;
    const std::int32_t flags = ptx::uniform(item.flags);
    if ((flags & kHasSteps) == 0) {
      // The first split writes zeros, the others add nothing.
      if ((flags & kFirstSplit) == 0) return;
    } else if ((flags & kWhole) != kWhole) {
      if (!add_splits(dk, dv, item, flags)) return;
    }
#pragma unroll
    for (int i = 0; i < kC.dk_columns() / 2; ++i) dk[i] *= params_.softmax.score.softmax_scale;
    ptx::named_barrier_sync(kDkvEpilogue + warpgroup_, 128);
    const KeyGradients& to = params_.key_gradients;
    write_columns(dv, row_of(to.dv, &KeyDestination::dv, item), to.dim_v);
    write_columns(dk, row_of(to.dk, &KeyDestination::dk, item), to.dim_qk);
  }

 private:
  static constexpr int kWarpRows = 16;
  static constexpr int kChunkBytes = 16;
  static constexpr int kPanelChunks = tile::kPanelRowBytes / kChunkBytes;
  static constexpr int kPanelBytes = kC.keys * tile::kPanelRowBytes;
  /// Panels of V's buffer that the warpgroup may use.
  static constexpr int kStagePanels =
      kC.v_stage_bytes() / kPanelBytes / (kC.has_half_columns() ? kC.consumers : 1);
  static constexpr int kKeyFloats = kC.keys * kC.dim_qk;   ///< floats of dK in a slot
  static constexpr int kValueFloats = kC.keys * kC.dim_v;  ///< floats of dV after them

  /// The thread's first float4 of dK in a slot.
  __device__ __forceinline__ float4* key_place(int slot) const {
    const std::int64_t place = kC.ctas() == 1 ? slot : kC.ctas() * slot + ptx::cluster_rank();
    const std::int64_t begin = place * (kKeyFloats + kValueFloats);
    return reinterpret_cast<float4*>(params_.key_gradients.split_sums + begin) +
           warpgroup_ * (kC.dk_columns() / 8) * 128 + thread();
  }
  /// The thread's first float4 of dV, in the slot whose first float4 of dK is at `keys`.
  __device__ __forceinline__ float4* value_place(float4* keys) const {
    return keys + kKeyFloats / 4 + warpgroup_ * ((kC.dv_columns() - kC.dk_columns()) / 8) * 128;
  }

  /// Adds the sum of earlier splits and, unless this split is the last, stores the new sum for the
  /// next one. Returns whether the sum is complete. Each warpgroup does so for its own keys alone.
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
    if (thread() == 0) ptx::signal_semaphore(semaphore(item.semaphore));
    return (flags & kLastSplit) != 0;
  }

  /// This warpgroup's semaphore of a k tile and kv head.
  __device__ __forceinline__ unsigned* semaphore(std::int32_t index) const {
    return params_.key_gradients.split_semaphores + index + warpgroup_;
  }

  /// Waits for splits of lower items only, so the lowest unfinished item never waits.
  __device__ __forceinline__ void wait_semaphore(std::int32_t index, std::int32_t value) const {
    if constexpr (kC.ctas() == 1) {
      if (thread() == 0) ptx::wait_semaphore(semaphore(index), static_cast<unsigned>(value));
    } else if (thread() == 0) {
      // Both CTAs of the k tile signal there.
      ptx::wait_semaphore_at_least(semaphore(index), static_cast<unsigned>(value) * kC.ctas());
    }
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

  /// The place where the gradient of a key goes; without data: nowhere.
  struct Row {
    std::uint8_t* data = nullptr;
    bool is_float = false;
  };

  /// Computed at each use, because the sums leave few registers.
  __device__ __forceinline__ static int thread() { return ptx::thread_index() & 127; }
  __device__ __forceinline__ static int lane() { return ptx::thread_index() & 31; }
  /// The first of the warp's 16 rows, in V's buffer too. NOTE: derived from the warpgroup's number
  /// it would cost the consumers' step uniform registers.
  __device__ __forceinline__ static int first_row() {
    const int warp = (ptx::thread_index() - 128) / 32;
    if constexpr (kC.has_half_columns()) return warp % 4 * kWarpRows;
    return warp * kWarpRows;
  }

  /// The lane's row, one of 16, in `local` or at its destination.
  __device__ __forceinline__ Row row_of(const StridedRows& local,
                                        GradientRows KeyDestination::*gradient,
                                        const ItemInfo& item) const {
    int row = first_row() + lane() % kWarpRows;
    if constexpr (kC.ctas() > 1) row += ptx::cluster_rank() * kC.keys;
    if (row >= item.num_keys) return {};
    const std::int32_t key = item.key_begin + row;
    if (params_.key_gradients.destinations == nullptr) {
      auto* data =
          local.is_float()
              ? reinterpret_cast<std::uint8_t*>(row_at<float>(local, key, item.kv_head))
              : reinterpret_cast<std::uint8_t*>(row_at<std::uint16_t>(local, key, item.kv_head));
      return {data, local.is_float()};
    }
    const KeyDestination* at = params_.key_gradients.destinations + item.first_segment;
    while (at->row_end <= key) ++at;
    const GradientRows& rows = at->*gradient;
    return {rows.data + (key - at->row_begin) * rows.row_bytes + item.kv_head * rows.head_bytes,
            rows.is_float};
  }

  /// Writes the warpgroup's columns of a gradient of `dim` columns; `row` has all columns.
  template <int kElements>
  __device__ __forceinline__ void write_columns(const float (&values)[kElements], Row row,
                                                int dim) const {
    if constexpr (kC.has_half_columns()) {
      const int first = warpgroup_ * (2 * kElements);
      if (row.data != nullptr) row.data += first * (row.is_float ? 4 : 2);
      dim -= first;
    }
    write_rows(values, row, dim);
  }

  /// Writes the warp's rows, in both types if the tile's destinations have both.
  template <int kElements>
  __device__ __forceinline__ void write_rows(const float (&values)[kElements], const Row& row,
                                             int dim) const {
    const bool is_there = row.data != nullptr;
    if (__any_sync(0xffffffffu, is_there && row.is_float)) {
      write_floats(values, row.is_float ? row.data : nullptr, dim);
    }
    if (__any_sync(0xffffffffu, is_there && !row.is_float)) {
      write_halves(values, row.is_float ? nullptr : row.data, dim);
    }
  }

  // Rows pass through the warp's rows of V's buffer. Neighbouring lanes then write neighbouring
  // chunks of 16 bytes, so that a row reaches another GPU in few full packets.

  /// The warpgroup's part of V's buffer.
  __device__ __forceinline__ std::uint8_t* staging() const {
    if constexpr (!kC.has_half_columns()) return shared_.v;
    return shared_.v + warpgroup_ * kStagePanels * kPanelBytes;
  }

  /// The address of a chunk of a row there.
  __device__ __forceinline__ static std::uint32_t chunk_place(int row, int chunk) {
    return static_cast<std::uint32_t>(chunk / kPanelChunks * kPanelBytes) +
           tile::swizzled_offset(row, chunk % kPanelChunks);
  }

  /// Copies the next kChunks chunks of rows from V's buffer; lane r % 16 has row r's address or
  /// null.
  template <int kChunks, typename Write>
  __device__ __forceinline__ void write_chunks(std::uint8_t* address, int num_chunks,
                                               const Write& write) const {
    const auto low = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(address));
    const auto high = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(address) >> 32);
#pragma unroll 4
    for (int round = 0; round < kWarpRows * kChunks / 32; ++round) {
      const int i = 32 * round + lane();
      const int row = i / kChunks;
      const int chunk = i % kChunks;
      const std::uintptr_t first = __shfl_sync(0xffffffffu, low, row) |
                                   std::uintptr_t{__shfl_sync(0xffffffffu, high, row)} << 32;
      const auto* source =
          reinterpret_cast<const float4*>(staging() + chunk_place(first_row() + row, chunk));
      if (first != 0 && chunk < num_chunks) {
        write(reinterpret_cast<float4*>(first + kChunkBytes * chunk), *source);
      }
    }
  }

  template <int kElements>
  __device__ __forceinline__ void write_floats(const float (&values)[kElements],
                                               std::uint8_t* address, int dim) const {
    // The columns that fit the warp's rows: 32 in each panel.
    constexpr int kColumns = 2 * kElements % (32 * kStagePanels) == 0 ? 32 * kStagePanels : 64;
    constexpr int kChunks = kColumns / 4;
    const bool is_adding = params_.key_gradients.is_adding;
#pragma unroll
    for (int begin = 0; begin < 2 * kElements; begin += kColumns) {
      stage_floats<kColumns>(values, begin);
      __syncwarp();
      std::uint8_t* target = address == nullptr ? nullptr : address + 4 * begin;
      write_chunks<kChunks>(target, (dim - begin) / 4, [&](float4* place, float4 value) {
        if (is_adding) {
          const float4 before = *place;
          value = make_float4(value.x + before.x, value.y + before.y, value.z + before.z,
                              value.w + before.w);
        }
        *place = value;
      });
      __syncwarp();
    }
  }

  /// Stores columns [begin, begin + kColumns) of the warp's rows in V's buffer.
  template <int kColumns, int kElements>
  __device__ __forceinline__ void stage_floats(const float (&values)[kElements], int begin) const {
    const std::uint32_t base =
        ptx::shared_address(staging()) + static_cast<std::uint32_t>(lane() % 2 * 8);
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c) {
#pragma unroll
      for (int row = 0; row < tile::kRowsPerThread; ++row) {
        const float* pair = values + begin / 2 + 4 * c + 2 * row;
        ptx::store_shared_float2(
            base + chunk_place(first_row() + lane() / 4 + 8 * row, 2 * c + lane() % 4 / 2), pair[0],
            pair[1]);
      }
    }
  }

  template <int kElements>
  __device__ __forceinline__ void write_halves(const float (&values)[kElements],
                                               std::uint8_t* address, int dim) const {
    tile::stage_rows<kC.type, kC.keys>(staging(), first_row(), lane(), values);
    __syncwarp();
    write_chunks<kElements / 4>(address, dim / 8,
                                [](float4* place, const float4& value) { *place = value; });
    __syncwarp();
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  const int warpgroup_;
};

}  // namespace magi::sm90
