// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/order.cuh"
#include "kernels/sm90/backward/dq_sum.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/tile/fragment.cuh"

namespace magi::sm90 {

inline constexpr int kConvertThreads = 256;

/// Waits until the dQ sum of a q tile and head group is complete. With an ordered list its
/// semaphores show that, so sums are converted while the main kernel runs its last items.
///
/// Each record's additions precede its signal (dq_semaphores.cuh), and increments of a semaphore
/// form a release sequence. So a thread that acquires the last value comes after all additions, and
/// the barrier passes that on to its CTA. All that the main kernel has waited for, such as the end
/// of earlier kernels, precedes its signals too. A sum without additions has no signal, so its CTA
/// waits for the end of the main kernel.
__device__ __forceinline__ void await_sum(const BackwardParams& params, int q_tile, int group,
                                          int num_components) {
  const BackwardOutcome* outcome = params.items.outcome;
  const bool has_signals = params.completion.tiles != nullptr && num_components > 0 &&
                           (outcome == nullptr || __ldcg(&outcome->num_items) != 0);
  if (!has_signals) return ptx::await_kernels_before();
  constexpr int kLanes = 32;
  constexpr unsigned kPauseNs = 250;
  if (threadIdx.x < kLanes) {
    // A TileSemaphores in one load.
    const int2 tile = __ldcg(reinterpret_cast<const int2*>(params.completion.tiles + q_tile));
    const unsigned* semaphores =
        params.dq_order.semaphores + std::int64_t{group} * params.dq_order.num_semaphores + tile.x;
    const auto expected = static_cast<unsigned>(tile.y * params.completion.num_adders);
    const auto is_complete = [&] {
      unsigned count = 0;
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x); i < num_components; i += kLanes) {
        count += ptx::load_acquire(semaphores + i);
      }
      if (__reduce_add_sync(0xffffffffu, count) == expected) return true;
      ptx::sleep_ns(kPauseNs);
      return false;
    };
    ptx::wait_until(
        is_complete, {"sum of dQ", semaphores, expected},
        [&] { return ptx::load_acquire(semaphores); }, std::source_location::current());
  }
  __syncthreads();
}

/// Scaled sums of 64 rows: the products of thread t of warpgroup w in the order of dq_place. In a q
/// tile of 128 rows each warpgroup multiplied all columns of 64 rows; this holds them as if each
/// had multiplied half of the columns. kIsMma: sums of kernels/mma, whose chunks of 8 columns
/// follow one another, each with the four elements of every thread.
template <int kDim, bool kIsMma>
struct SumRows {
  float4 values[kDim / 16];

  __device__ __forceinline__ void load(const BackwardParams& params, std::int64_t sum) {
    const BackwardOutcome* outcome = params.items.outcome;
    const bool is_ordered =
        outcome == nullptr ? params.dq_order.is_ordered : __ldcg(&outcome->is_ordered) != 0;
    const int warpgroup = static_cast<int>(threadIdx.x) / 128;
    const float* source = params.dq.sums + sum * (64 * kDim) + warpgroup * (32 * kDim);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const int thread = static_cast<int>(threadIdx.x) % 128;
      if constexpr (kIsMma) {
        const float* chunk = source + 512 * i + thread;
        values[i] = make_float4(__ldcs(chunk), __ldcs(chunk + 128), __ldcs(chunk + 256),
                                __ldcs(chunk + 384));
        continue;
      }
      const int place = is_ordered ? dq_place<true>(4 * i, thread) : dq_place<false>(4 * i, thread);
      values[i] = __ldcs(reinterpret_cast<const float4*>(source + place));
    }
    const float scale = params.softmax.score.softmax_scale;
#pragma unroll
    for (float4& value : values) {
      value = make_float4(scale * value.x, scale * value.y, scale * value.z, scale * value.w);
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float4& value : values) value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }

  /// Calls visit(row, column, x, y) for each pair of neighbouring elements.
  template <typename Visit>
  __device__ __forceinline__ void for_each_pair(Visit visit) const {
    const tile::FragmentPlace place(static_cast<int>(threadIdx.x) % 128);
    const int warpgroup = static_cast<int>(threadIdx.x) / 128;
    const int first = warpgroup * (kDim / 2) + place.column;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      int column = first + 8 * i;
      if constexpr (kDim == 192 && !kIsMma) {
        column = dq_column_of_three_panels(warpgroup, 8 * i) + place.column;
      }
      visit(place.row, column, values[i].x, values[i].y);
      visit(place.row + 8, column, values[i].z, values[i].w);
    }
  }
};

/// Finds where row r of the CTA's 64 rows lies in dq; `is_inside` is false past the last token.
struct QueryRow {
  std::int64_t place;
  bool is_inside;

  __device__ __forceinline__ QueryRow(const BackwardParams& params, int part, int group, int r) {
    const std::int64_t token = (std::int64_t{part} * 64 + r) >> params.query.packed_shift;
    const int head = (group << params.query.packed_shift) + (r & (params.query.packed_heads - 1));
    place = token * params.dq.rows.row_stride + head * params.dq.rows.head_stride;
    is_inside = token < params.query.rows_q;
  }
};

template <int kDim, bool kIsMma>
__device__ __forceinline__ void write_floats(const BackwardParams& params, int part, int group,
                                             const SumRows<kDim, kIsMma>& sum) {
  sum.for_each_pair([&](int r, int column, float x, float y) {
    const QueryRow row(params, part, group, r);
    if (!row.is_inside || column >= params.dq.dim) return;
    auto* pair =
        reinterpret_cast<float2*>(static_cast<float*>(params.dq.rows.data) + row.place + column);
    const float2 before = params.dq.is_adding ? *pair : make_float2(0.0f, 0.0f);
    *pair = make_float2(before.x + x, before.y + y);
  });
}

/// Writes rows of 16-bit elements through shared memory, so that stores have 16 bytes.
template <DType kType, int kDim, bool kIsMma>
__device__ __forceinline__ void write_halves(const BackwardParams& params, int part, int group,
                                             const SumRows<kDim, kIsMma>& sum) {
  constexpr int kRowBytes = 2 * kDim + 16;  // neighbouring rows begin in other banks
  constexpr int kChunks = kDim / 8;
  __shared__ __align__(16) std::uint8_t rows[64 * kRowBytes];
  sum.for_each_pair([&](int r, int column, float x, float y) {
    *reinterpret_cast<std::uint32_t*>(rows + r * kRowBytes + 2 * column) =
        ptx::pack_half2<kType>(x, y);
  });
  __syncthreads();
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < 64 * kChunks; i += kConvertThreads) {
    const int r = i / kChunks;
    const int column = i % kChunks * 8;
    const QueryRow row(params, part, group, r);
    if (!row.is_inside || column >= params.dq.dim) continue;
    auto* target = static_cast<std::uint16_t*>(params.dq.rows.data) + row.place + column;
    *reinterpret_cast<int4*>(target) =
        *reinterpret_cast<const int4*>(rows + r * kRowBytes + 2 * column);
  }
}

/// Converts sums of dQ into dq: one CTA per 64 rows of a head group, with kParts CTAs per q tile.
/// Groups of the same rows have neighbouring CTAs, as they are neighbours in dq. If the main kernel
/// converts sums, this one handles only the tiles that remain. A CTA starts where one of the main
/// kernel has ended. By then all CTAs of the main kernel are resident, so none needs a
/// multiprocessor that waits here.
template <DType kType, int kDim, int kParts, bool kIsMma = false>
__global__ void __launch_bounds__(kConvertThreads)
    dq_convert_kernel(const __grid_constant__ BackwardParams params) {
  const auto num_groups = static_cast<unsigned>(params.query.heads_q) >> params.query.packed_shift;
  int part = static_cast<int>(blockIdx.x / num_groups);
  if (params.dq_order.is_converting) {
    part = __ldg(params.dq.left_tiles + part / kParts) * kParts + part % kParts;
  }
  const int group = static_cast<int>(blockIdx.x % num_groups);
  // A list made on the device is complete: all CTAs of the main kernel have waited for it.
  if (params.completion.tiles == nullptr) ptx::await_kernels_before();
  const bool is_converted = params.dq.converted_tiles != nullptr &&
                            __ldcg(params.dq.converted_tiles + part / kParts) != 0;
  if (is_converted) {
    if (blockIdx.x + 1 == gridDim.x) ptx::await_kernels_before();
    return;
  }
  const int num_components = __ldcg(params.dq_order.num_components + part / kParts);
  await_sum(params, part / kParts, group, num_components);
  SumRows<kDim, kIsMma> sum;
  if (num_components == 0) {
    sum.clear();
  } else {
    sum.load(params, static_cast<std::int64_t>(group) * params.query.num_q_tiles * kParts + part);
  }
  if (params.dq.rows.is_float()) {
    write_floats(params, part, group, sum);
  } else {
    write_halves<kType>(params, part, group, sum);
  }
  // The next kernel waits for this one only, so this one must not end before the main kernel. One
  // CTA waits for that, and the others make room.
  if (blockIdx.x + 1 == gridDim.x) ptx::await_kernels_before();
}

}  // namespace magi::sm90
