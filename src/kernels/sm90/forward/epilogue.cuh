// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/forward/params.hpp"
#include "kernels/sm90/forward/row_result.cuh"
#include "kernels/sm90/forward/shared.cuh"
#include "kernels/sm90/forward/softmax.cuh"
#include "kernels/sm90/global_memory.cuh"
#include "kernels/sm90/half_rows.cuh"
#include "kernels/tile/stage.cuh"

namespace magi::sm90 {

/// Raises *address to `value`, through the order of the floats' bits.
__device__ __forceinline__ void atomic_max(float* address, float value) {
  const float normal = value + 0.0f;  // -0 has the bits of the least integer
  if (normal >= 0.0f) {
    atomicMax(reinterpret_cast<int*>(address), __float_as_int(normal));
  } else {
    atomicMin(reinterpret_cast<unsigned*>(address), __float_as_uint(normal));
  }
}

/// Turns O, maxima and sums into out, lse and max_logits, or into the partial rows of a split.
/// `Storage`: shared memory with `weights` and `places`.
template <ForwardConfig kC, typename Storage = SharedStorage<kC>>
class Epilogue {
 public:
  /// The epilogue of the item whose place, and where out is staged whose Q tile, is `stage`.
  __device__ __forceinline__ Epilogue(Storage& shared, const ForwardParams& params, int warpgroup,
                                      int stage)
      : shared_(shared),
        params_(params),
        place_(ptx::thread_index() % 128),
        warpgroup_(warpgroup),
        stage_(stage) {}

  /// Writes lse and max_logits, keeps the rows' weights; O may still be under way.
  __device__ __forceinline__ void finish_rows(const RowState<kC>& state) const {
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const RowWeights weights = finish_row(state, row);
      if (place_.column == 0) shared_.weights[row_in_tile(row)] = weights;
    }
    __syncwarp();
  }

  /// Writes out over the item's Q tile, which nobody of this warpgroup reads any more, and from
  /// there to memory.
  __device__ __forceinline__ void write(float (&out)[kC.dim_v / 2]) const {
    float weight[tile::kRowsPerThread];
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      weight[row] = shared_.weights[row_in_tile(row)].weight;
    }
#pragma unroll
    for (int i = 0; i < kC.dim_v / 2; ++i) out[i] *= weight[(i / 2) % 2];
    if constexpr (kC.has_any_out()) {
      if (params_.out_float.data != nullptr || partial() >= 0) {
        write_float(out);
        return;
      }
    }
    if constexpr (kC.stages_out()) {
      write_staged(out);
    } else {
      write_half(out);
    }
  }

 private:
  __device__ __forceinline__ void write_float(float (&out)[kC.dim_v / 2]) const {
    if (params_.is_merging) {
      for_each_pair(out, [&](float2* pair, float& x, float& y, int row) {
        const float earlier = shared_.weights[row_in_tile(row)].earlier_weight;
        if (earlier == 0.0f) return;  // an earlier out without keys may hold anything
        const float2 before = *pair;
        x = fmaf(before.x, earlier, x);
        y = fmaf(before.y, earlier, y);
      });
    }
    for_each_pair(out, [](float2* pair, float x, float y, int) { *pair = make_float2(x, y); });
    __syncwarp();  // the weights have been read before finish_rows writes the next item's
  }

  __device__ __forceinline__ const ItemPlace& item_place() const {
    return shared_.places[kC.q_parts() == 1 ? 0 : warpgroup_][stage_];
  }
  /// The place of the item's partial rows, -1 where it is no split.
  __device__ __forceinline__ int partial() const { return item_place().partial; }
  __device__ __forceinline__ int row_in_tile(int row) const {
    return 64 * warpgroup_ + place_.row + 8 * row;
  }
  __device__ __forceinline__ std::int64_t token_of(int row) const {
    return item_place().token_begin + (row_in_tile(row) >> params_.packed_shift);
  }
  __device__ __forceinline__ int head_of(int row) const {
    return item_place().head_begin + (row_in_tile(row) & (params_.packed_heads - 1));
  }

  __device__ __forceinline__ RowWeights finish_row(const RowState<kC>& state, int row) const {
    const float sum = tile::sum_over_row(state.sum[row]);
    const bool has_keys = sum > 0.0f;
    RowResult result;
    if (has_keys) {
      result.log_sum = state.scaled_base(row, params_.score) + ptx::log2_approx(sum);
      result.weights.weight = ptx::reciprocal_approx(sum);
    }
    const float top = state.top_of_row(row);
    const std::int64_t token = token_of(row);
    const int head = head_of(row);
    // One of the four lanes that share the row goes on.
    if (place_.column != 0 || token >= params_.rows_q) return result.weights;
    float* lse = row_at<float>(params_.lse, token, head);
    if constexpr (kC.has_any_out()) {
      if (partial() >= 0) {
        lse = params_.partial.lse + (partial() * kC.rows() + row_in_tile(row));
      } else {
        if (params_.sink.count > 0) add_sinks(result, params_.sink, token, head);
        if (params_.is_merging) merge_earlier(result, *lse * kLog2E);
      }
    }
    *lse = result.log_sum * kLn2;
    if (kC.is_general() && params_.max_logits != nullptr && has_keys) {
      atomic_max(params_.max_logits + head, top * params_.score.softmax_scale);
    }
    return result.weights;
  }

  /// The float32 row that a row of O goes to.
  __device__ __forceinline__ float* target_of(int row, std::int64_t token) const {
    if (partial() >= 0) {
      return params_.partial.out +
             std::int64_t{partial() * kC.rows() + row_in_tile(row)} * params_.dim_v;
    }
    return row_at<float>(params_.out_float, token, head_of(row));
  }

  /// Calls visit(pointer into the float32 out, the two elements there, row of the thread).
  template <typename Visit>
  __device__ __forceinline__ void for_each_pair(float (&out)[kC.dim_v / 2], Visit visit) const {
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const std::int64_t token = token_of(row);
      const int num_columns = token < params_.rows_q ? params_.dim_v - place_.column : 0;
      float* target = target_of(row, token) + place_.column;
#pragma unroll
      for (int c = 0; c < kC.dim_v / 8; ++c) {
        const int i = 4 * c + 2 * row;
        if (8 * c < num_columns) {
          visit(reinterpret_cast<float2*>(target + 8 * c), out[i], out[i + 1], row);
        }
      }
    }
  }

  __device__ __forceinline__ void write_half(const float (&out)[kC.dim_v / 2]) const {
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const std::int64_t token = token_of(row);
      write_half_row<kC.type>(out, row, place_.column, token < params_.rows_q ? params_.dim_v : 0,
                              row_at<std::uint16_t>(params_.out_half, token, head_of(row)));
    }
    __syncwarp();  // the weights have been read before finish_rows writes the next item's
  }

  /// Each warp stages its 16 rows and stores them by itself; no other warp is waited for.
  __device__ __forceinline__ void write_staged(const float (&out)[kC.dim_v / 2]) const {
    const int thread = ptx::thread_index();
    const int lane = thread % 32;
    const int first_row = 64 * warpgroup_ + thread % 128 / 32 * 16;
    std::uint8_t* staging = shared_.q[stage_];
    constexpr int kPanelBytes = kC.rows() * tile::kPanelRowBytes;
    tile::stage_rows<kC.type, kC.rows()>(staging, first_row, lane, out);
    ptx::fence_async_shared();
    __syncwarp();
    if (lane != 0) return;
    const ItemPlace item = item_place();
    const int token = item.token_begin + (first_row >> params_.packed_shift);
    for (int panel = 0; panel < kC.dim_v / tile::kPanelElements; ++panel) {
      ptx::store_box(params_.out, {panel * tile::kPanelElements, item.head_begin, token},
                     staging + panel * kPanelBytes + first_row * tile::kPanelRowBytes);
    }
    ptx::store_commit();
  }

  Storage& shared_;
  const ForwardParams& params_;
  const tile::FragmentPlace place_;
  const int warpgroup_;
  const int stage_;
};

}  // namespace magi::sm90
