// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/dq_writer.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/tile/fragment.cuh"

namespace magi::sm90 {

template <DType kType>
__device__ __forceinline__ void write_gradient(const GradientRows& target, std::int64_t place,
                                               float x, float y) {
  if (!target.is_float) {
    auto* data = static_cast<std::uint16_t*>(target.data) + place;
    *reinterpret_cast<std::uint32_t*>(data) = ptx::pack_half2<kType>(x, y);
    return;
  }
  auto* pair = reinterpret_cast<float2*>(static_cast<float*>(target.data) + place);
  const float2 before = target.is_added ? *pair : make_float2(0.0f, 0.0f);
  *pair = make_float2(before.x + x, before.y + y);
}

/// dq from its sums: one CTA of 256 threads per q tile (x) and head group (y).
template <DType kType, int kDim>
__global__ void __launch_bounds__(256)
    finish_kernel(const __grid_constant__ BackwardParams params) {
  constexpr int kColumns = kDim / 2;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const tile::FragmentPlace place(thread);
  const auto sum = std::int64_t{blockIdx.y} * params.num_q_tiles + blockIdx.x;
  const float* source = params.dq_sums + sum * (64 * kDim) + warpgroup * 64 * kColumns;
  const auto first_token = std::int64_t{blockIdx.x} << params.token_shift;
#pragma unroll
  for (int i = 0; i < kColumns / 2; i += 4) {
    const float4 value = __ldcs(reinterpret_cast<const float4*>(source + dq_place(i, thread)));
    const int column = warpgroup * kColumns + 2 * i + place.column;
    if (column >= params.dim_qk) continue;
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const int row_in_tile = place.row + 8 * row;
      const std::int64_t token = first_token + (row_in_tile >> params.packed_shift);
      if (token >= params.rows_q) continue;
      const std::int64_t head = std::int64_t{blockIdx.y} * params.packed_heads +
                                (row_in_tile & (params.packed_heads - 1));
      const float scale = params.score.softmax_scale;
      write_gradient<kType>(
          params.dq, token * params.dq.row_stride + head * params.dq.head_stride + column,
          scale * (row == 0 ? value.x : value.z), scale * (row == 0 ? value.y : value.w));
    }
  }
}

}  // namespace magi::sm90
