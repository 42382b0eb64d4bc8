// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/forward/params.hpp"
#include "kernels/sm90/forward/shared.cuh"
#include "kernels/sm90/forward/softmax.cuh"
#include "kernels/tile/descriptor.cuh"
#include "kernels/tile/fragment.cuh"

namespace magi::sm90 {

/// log2(2^a + 2^b); -infinity stands for nothing.
__device__ __forceinline__ float log2_add(float a, float b) {
  const float top = fmaxf(a, b);
  if (top == -INFINITY) return top;
  return top + ptx::log2_approx(ptx::exp2_approx(a - top) + ptx::exp2_approx(b - top));
}

/// The share of `part` in `total`, both log2; nothing has no share.
__device__ __forceinline__ float share(float part, float total) {
  return part == -INFINITY ? 0.0f : ptx::exp2_approx(part - total);
}

__device__ __forceinline__ void atomic_max(float* address, float value) {
  const float normal = value + 0.0f;  // -0 has the bits of the least integer
  if (normal >= 0.0f) {
    atomicMax(reinterpret_cast<int*>(address), __float_as_int(normal));
  } else {
    atomicMin(reinterpret_cast<unsigned*>(address), __float_as_uint(normal));
  }
}

/// What becomes of one row of accumulators.
struct RowResult {
  float log_sum;  ///< log2 of the denominator
  float weight;   ///< out = weight * O + earlier_weight * earlier out
  float earlier_weight;
};

/// Turns O, maxima and sums into out, lse and max_logits.
template <ForwardConfig kC>
class Epilogue {
 public:
  __device__ __forceinline__ Epilogue(const ForwardParams& params, const tile::FragmentPlace& place,
                                      int warpgroup)
      : params_(params), place_(place), warpgroup_(warpgroup) {}

  /// `staging` is the item's Q tile, no longer read by anyone in this warpgroup.
  __device__ __forceinline__ void write(float (&out)[kC.dim / 2],
                                        const RowState<kC.has_softcap>& state,
                                        std::int32_t token_begin, std::int32_t head_begin,
                                        std::uint8_t* staging) const {
    float weight[tile::kRowsPerThread];
    float earlier[tile::kRowsPerThread];
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const int row_in_tile = 64 * warpgroup_ + place_.row + 8 * row;
      const std::int64_t token = token_begin + (row_in_tile >> params_.packed_shift);
      const int head = head_begin + (row_in_tile & (params_.packed_heads - 1));
      const RowResult result = finish_row(state, row, token, head);
      weight[row] = result.weight;
      earlier[row] = result.earlier_weight;
    }
#pragma unroll
    for (int i = 0; i < kC.dim / 2; ++i) out[i] *= weight[(i / 2) % 2];
    if (params_.out_float.data == nullptr) {
      write_half(out, token_begin, head_begin, staging);
      return;
    }
    if (params_.is_merging) {
      for_each_pair(out, token_begin, head_begin, [&](float2* pair, float& x, float& y, int row) {
        if (earlier[row] == 0.0f) return;  // an earlier out without keys may hold anything
        const float2 before = *pair;
        x = fmaf(before.x, earlier[row], x);
        y = fmaf(before.y, earlier[row], y);
      });
    }
    for_each_pair(out, token_begin, head_begin,
                  [](float2* pair, float x, float y, int) { *pair = make_float2(x, y); });
  }

 private:
  __device__ __forceinline__ RowResult finish_row(const RowState<kC.has_softcap>& state, int row,
                                                  std::int64_t token, int head) const {
    const float sum = tile::sum_over_row(state.sum[row]);
    const bool has_keys = sum > 0.0f;
    RowResult result{-INFINITY, 0.0f, 0.0f};
    if (has_keys) {
      result.log_sum = state.level(row, params_.score) + ptx::log2_approx(sum);
      result.weight = 1.0f / sum;
    }
    const float top = tile::max_over_row(state.top[row]);
    if (token >= params_.rows_q) return result;
    if (params_.sink.count > 0) add_sinks(result, token, head);
    float* lse = params_.lse.data + token * params_.lse.row_stride + head * params_.lse.head_stride;
    if (params_.is_merging) merge_earlier(result, *lse * kLog2E);
    __syncwarp(__activemask());  // lanes that share a row have read lse before one writes it
    if (place_.column == 0) {
      *lse = result.log_sum * kLn2;
      if (params_.max_logits != nullptr && has_keys) {
        atomic_max(params_.max_logits + head, top * params_.score.softmax_scale);
      }
    }
    return result;
  }

  __device__ __forceinline__ void add_sinks(RowResult& result, std::int64_t token, int head) const {
    const float* sinks = params_.sink.data + token * params_.sink.row_stride + head;
    for (int i = 0; i < params_.sink.count; ++i) {
      const float total = log2_add(result.log_sum, sinks[i * params_.sink.sink_stride] * kLog2E);
      result.weight *= share(result.log_sum, total);
      result.log_sum = total;
    }
  }

  __device__ __forceinline__ void merge_earlier(RowResult& result, float earlier) const {
    const float total = log2_add(result.log_sum, earlier);
    result.weight *= share(result.log_sum, total);
    result.earlier_weight = share(earlier, total);
    result.log_sum = total;
  }

  /// Calls visit(pointer into the float32 out, the two elements there, row of the thread).
  template <typename Visit>
  __device__ __forceinline__ void for_each_pair(float (&out)[kC.dim / 2], std::int32_t token_begin,
                                                std::int32_t head_begin, Visit visit) const {
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const int row_in_tile = 64 * warpgroup_ + place_.row + 8 * row;
      const std::int64_t token = token_begin + (row_in_tile >> params_.packed_shift);
      const int head = head_begin + (row_in_tile & (params_.packed_heads - 1));
      const int num_columns = token < params_.rows_q ? params_.dim_v - place_.column : 0;
      float* target = params_.out_float.data + token * params_.out_float.row_stride +
                      head * params_.out_float.head_stride + place_.column;
#pragma unroll
      for (int c = 0; c < kC.dim / 8; ++c) {
        const int i = 4 * c + 2 * row;
        if (8 * c < num_columns) {
          visit(reinterpret_cast<float2*>(target + 8 * c), out[i], out[i + 1], row);
        }
      }
    }
  }

  /// Each warp stages its 16 rows and stores them by itself; no other warp is waited for.
  __device__ __forceinline__ void write_half(const float (&out)[kC.dim / 2],
                                             std::int32_t token_begin, std::int32_t head_begin,
                                             std::uint8_t* staging) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first_row = 64 * warpgroup_ + (static_cast<int>(threadIdx.x) % 128) / 32 * 16;
    const std::uint32_t base = ptx::shared_address(staging);
    constexpr int kPanelBytes = kC.rows() * tile::kPanelRowBytes;
#pragma unroll
    for (int c = 0; c < kC.dim / 8; c += 2) {
      const int chunk = c % 8 + lane / 16;
      const std::uint32_t address = base + static_cast<std::uint32_t>((c / 8) * kPanelBytes) +
                                    tile::swizzled_offset(first_row + lane % 16, chunk);
      const float* value = out + 4 * c;
      ptx::store_matrix_x4(address, ptx::pack_half2<kC.type>(value[0], value[1]),
                           ptx::pack_half2<kC.type>(value[2], value[3]),
                           ptx::pack_half2<kC.type>(value[4], value[5]),
                           ptx::pack_half2<kC.type>(value[6], value[7]));
    }
    ptx::fence_async_shared();
    __syncwarp();
    if (lane != 0) return;
    const int token = token_begin + (first_row >> params_.packed_shift);
    for (int panel = 0; panel < kC.dim / tile::kPanelElements; ++panel) {
      ptx::store_box(params_.out, {panel * tile::kPanelElements, head_begin, token},
                     staging + panel * kPanelBytes + first_row * tile::kPanelRowBytes);
    }
    ptx::store_commit();
  }

  const ForwardParams& params_;
  const tile::FragmentPlace& place_;
  const int warpgroup_;
};

}  // namespace magi::sm90
