// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/check.hpp"
#include "cuda/device.hpp"
#include "kernels/attention/combine.hpp"

namespace magi {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr std::int64_t kMaxBlocks = 4096;

/// A tensor as the kernels see it.
struct Elements {
  void* data;
  DType dtype;
  Axes axes;

  explicit Elements(const TensorView& tensor)
      : data(tensor.data), dtype(tensor.dtype), axes(tensor) {}
};

__device__ double load(const Elements& from, std::int64_t place) {
  switch (from.dtype) {
    case DType::Float64:
      return static_cast<const double*>(from.data)[place];
    case DType::Float32:
      return static_cast<const float*>(from.data)[place];
    case DType::Float16:
      return __half2float(static_cast<const __half*>(from.data)[place]);
    default:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(from.data)[place]);
  }
}

__device__ void store(double value, const Elements& to, std::int64_t place) {
  const auto single = static_cast<float>(value);
  switch (to.dtype) {
    case DType::Float64:
      static_cast<double*>(to.data)[place] = value;
      return;
    case DType::Float32:
      static_cast<float*>(to.data)[place] = single;
      return;
    case DType::Float16:
      static_cast<__half*>(to.data)[place] = __float2half_rn(single);
      return;
    default:
      static_cast<__nv_bfloat16*>(to.data)[place] = __float2bfloat16_rn(single);
  }
}

__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ Elements source, const __grid_constant__ Elements target,
                   Combination how, std::int64_t count) {
  std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i < count; i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t place = place_of(target.axes, i);
    const double value = load(source, place_of(source.axes, i));
    store(how == Combination::Write ? value : combined(value, load(target, place), how), target,
          place);
  }
}

/// A warp merges a row of the head that is the block's y.
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const __grid_constant__ Elements part_out,
                 const __grid_constant__ Elements part_lse, const __grid_constant__ Elements out,
                 const __grid_constant__ Elements lse) {
  const auto place = [](const Elements& of, std::int64_t row, int dim) {
    return row * of.axes.stride[0] + blockIdx.y * of.axes.stride[1] + dim * of.axes.stride[2];
  };
  const auto dims = static_cast<int>(part_out.axes.shape[2]);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  for (; row < part_lse.axes.shape[0]; row += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t lse_place = place(lse, row, 0);
    const MergedRow merged =
        merged_row(load(part_lse, place(part_lse, row, 0)), load(lse, lse_place));
    __syncwarp();  // all lanes have read the lse that one of them writes
    if (merged.part_weight == 0.0) continue;
    if (lane == 0) store(merged.lse, lse, lse_place);
    for (int dim = lane; dim < dims; dim += 32) {
      const std::int64_t target = place(out, row, dim);
      const double part = merged.part_weight * load(part_out, place(part_out, row, dim));
      store(part + merged.sum_weight * load(out, target), out, target);
    }
  }
}

unsigned num_blocks(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>(std::min((count + per_block - 1) / per_block, kMaxBlocks));
}

}  // namespace

void combine_on_device(const TensorView& source, const TensorView& target, Combination how,
                       void* stream) {
  const DeviceScope scope(source.device);
  const std::int64_t count = source.num_elements();
  combine_kernel<<<num_blocks(count, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      Elements(source), Elements(target), how, count);
  cuda_check(cudaGetLastError(), "combine_kernel");
}

void merge_on_device(const AttentionPart& part, const AttentionPart& sum, void* stream) {
  const DeviceScope scope(part.out.device);
  const dim3 blocks(num_blocks(part.lse.shape[0], kWarps),
                    static_cast<unsigned>(part.lse.shape[1]));
  merge_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      Elements(part.out), Elements(part.lse), Elements(sum.out), Elements(sum.lse));
  cuda_check(cudaGetLastError(), "merge_kernel");
}

}  // namespace magi
