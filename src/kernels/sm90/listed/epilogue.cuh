// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/forward/epilogue.cuh"
#include "kernels/sm90/listed/head_rows.cuh"

namespace magi::sm90 {

/// Turns O, maxima and sums of an item into out, lse and max_logits.
template <ListedConfig kC>
class ListedEpilogue {
 public:
  __device__ __forceinline__ ListedEpilogue(const ListedForwardParams& params,
                                            const ListedItem& item, int warpgroup)
      : params_(params), rows_(params.shape, item, item.group * kC.rows() + 64 * warpgroup) {}

  __device__ __forceinline__ void write(const RowState<kC.softmax()>& state,
                                        float (&out)[kC.dim / 2]) const {
    float weight[tile::kRowsPerThread];
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) weight[row] = finish_row(state, row);
#pragma unroll
    for (int i = 0; i < kC.dim / 2; ++i) out[i] *= weight[(i / 2) % 2];
    rows_.template store<kC.type>(params_.out, params_.shape.dim_v, out);
  }

 private:
  /// Writes lse. Returns the factor from a row of O to out, equal in the row's four lanes.
  __device__ __forceinline__ float finish_row(const RowState<kC.softmax()>& state, int row) const {
    const float sum = tile::sum_over_row(state.sum[row]);
    const float top = state.top_of_row(row);
    const bool has_keys = sum > 0.0f;
    RowResult result;
    if (has_keys) {
      result.log_sum = state.scaled_base(row, params_.score) + ptx::log2_approx(sum);
      result.weights.weight = ptx::reciprocal_approx(sum);
    }
    if (!rows_.is_head(row)) return 0.0f;
    const int head = rows_.head_of(row);
    if (params_.sink.count > 0) add_sinks(result, params_.sink, rows_.token_of(row), head);
    if (rows_.column() != 0) return result.weights.weight;
    *row_at<float>(params_.lse, rows_.token_of(row), head) = result.log_sum * kLn2;
    if (kC.is_general && params_.max_logits != nullptr && has_keys) {
      atomic_max(params_.max_logits + head, top * params_.score.softmax_scale);
    }
    return result.weights.weight;
  }

  const ListedForwardParams& params_;
  const TileRows<kC.is_joined> rows_;
};

}  // namespace magi::sm90
