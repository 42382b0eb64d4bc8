// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/math.hpp"
#include "comm/device_rounding.hpp"
#include "comm/device_row_layout.cuh"
#include "cuda/check.hpp"

// The last sum of a pass: own part and partials are read once, the result is written once, in its
// own type. Adding to float32 rows and rounding those afterwards moves twice as many bytes.
namespace magi::comm {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kLoadsAhead = 4;
constexpr std::int64_t kHalfUnit = 8;  ///< bytes of four 16-bit elements

struct RoundedSum {
  DeviceRows own[kMaxTensors] = {}, wire[kMaxTensors] = {}, rounded[kMaxTensors] = {};
  const SumTask* tasks = nullptr;
  const std::int32_t* parts = nullptr;
  int num_tasks = 0;
  int num_rows = 0;
  bool is_dense = false;  ///< `own` has only the rows that something is added to
};

/// The place of the first task that ends behind a row; num_tasks: there is none.
__device__ __forceinline__ int find_task(const RoundedSum& sum, int row) {
  int low = 0, high = sum.num_tasks;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (sum.tasks[middle].row + sum.tasks[middle].num_rows <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ __forceinline__ void add(float4& sum, const float4& value) {
  sum.x += value.x;
  sum.y += value.y;
  sum.z += value.z;
  sum.w += value.w;
}

__device__ __forceinline__ uint2 rounded(float4 value, __half) {
  const __half2 low = __floats2half2_rn(value.x, value.y);
  const __half2 high = __floats2half2_rn(value.z, value.w);
  return {reinterpret_cast<const unsigned&>(low), reinterpret_cast<const unsigned&>(high)};
}
__device__ __forceinline__ uint2 rounded(float4 value, __nv_bfloat16) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(value.x, value.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(value.z, value.w);
  return {reinterpret_cast<const unsigned&>(low), reinterpret_cast<const unsigned&>(high)};
}

__device__ __forceinline__ float4 widened(uint2 value, __half) {
  const float2 low = __half22float2(reinterpret_cast<const __half2&>(value.x));
  const float2 high = __half22float2(reinterpret_cast<const __half2&>(value.y));
  return {low.x, low.y, high.x, high.y};
}
__device__ __forceinline__ float4 widened(uint2 value, __nv_bfloat16) {
  const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(value.x));
  const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(value.y));
  return {low.x, low.y, high.x, high.y};
}

/// Four elements of a partial, which are float32 or of the result's type.
template <typename Element, bool kIsWide>
__device__ __forceinline__ float4 load_part(const DeviceRows& wire, std::byte* row, int unit) {
  if constexpr (kIsWide) {
    return *unit_of<float4>(wire, row, unit);
  } else {
    return widened(*unit_of<uint2>(wire, row, unit), Element{});
  }
}

/// A warp per row, a block row per tensor.
template <typename Element, bool kIsWide>
__global__ __launch_bounds__(kThreads) void round_sums_kernel(
    const __grid_constant__ RoundedSum sum) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (row >= sum.num_rows) return;
  const DeviceRows own = sum.own[blockIdx.y];
  const DeviceRows wire = sum.wire[blockIdx.y];
  const DeviceRows target = sum.rounded[blockIdx.y];
  SumTask task;
  if (const int place = find_task(sum, row); place < sum.num_tasks) task = sum.tasks[place];
  const int num_parts = row >= task.row ? task.num_parts : 0;
  if (sum.is_dense && num_parts == 0) return;
  std::byte* own_row = row_of(own, sum.is_dense ? task.sum_row + row - task.row : row);
  std::byte* target_row = row_of(target, row);
  for (int first = static_cast<int>(threadIdx.x) % 32; first < own.row_units;
       first += 32 * kLoadsAhead) {
    float4 held[kLoadsAhead];
#pragma unroll
    for (int k = 0; k < kLoadsAhead; ++k) {
      if (first + 32 * k < own.row_units) {
        held[k] = *unit_of<float4>(own, own_row, first + 32 * k);
      }
    }
    for (int p = task.first_part; p < task.first_part + num_parts; ++p) {
      std::byte* part = row_of(wire, sum.parts[p] + row - task.row);
#pragma unroll
      for (int k = 0; k < kLoadsAhead; ++k) {
        if (first + 32 * k < own.row_units) {
          add(held[k], load_part<Element, kIsWide>(wire, part, first + 32 * k));
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kLoadsAhead; ++k) {
      if (first + 32 * k < own.row_units) {
        *unit_of<uint2>(target, target_row, first + 32 * k) = rounded(held[k], Element{});
      }
    }
  }
}

template <typename Element>
void launch(const RoundedSum& sum, dim3 grid, bool is_wide, cudaStream_t stream) {
  if (is_wide) {
    round_sums_kernel<Element, true><<<grid, kThreads, 0, stream>>>(sum);
  } else {
    round_sums_kernel<Element, false><<<grid, kThreads, 0, stream>>>(sum);
  }
}

}  // namespace

bool can_round_sums(const Partials& partials) {
  const std::span<const TensorView> targets = partials.rounded;
  if (partials.kind != ExchangeKind::Sum || targets.size() != partials.to.size()) return false;
  if (targets.empty()) return false;
  const std::int64_t own_rows = partials.to[0].shape[0];
  if (own_rows != targets[0].shape[0] && own_rows != partials.tasks.num_sum_rows) return false;
  const DType sent = wire_type(partials.wire_types, 0);
  if (sent != DType::Float32 && sent != targets[0].dtype) return false;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    TensorView like = targets[t];
    like.shape[0] = own_rows;
    const bool is_suited =
        partials.to[t].dtype == DType::Float32 && wire_type(partials.wire_types, t) == sent &&
        dtype_bytes(targets[t].dtype) == 2 && targets[t].dtype == targets[0].dtype &&
        targets[t].shape[0] == targets[0].shape[0] && like.shape == partials.to[t].shape;
    if (!is_suited) return false;
  }
  const auto own = tensor_rows(partials.to);
  const auto wire = wire_rows(partials.to, partials.wire_types, partials.wire);
  const auto target = tensor_rows(targets);
  const auto wire_unit = sent == DType::Float32 ? kLargestUnit : kHalfUnit;
  return common_unit(own, own) == kLargestUnit && common_unit(wire, wire) >= wire_unit &&
         common_unit(target, target) >= kHalfUnit;
}

void launch_round_sums(const Partials& partials, cudaStream_t stream) {
  RoundedSum sum{.tasks = partials.tasks.sums.data(),
                 .parts = partials.tasks.parts.data(),
                 .num_tasks = static_cast<int>(partials.tasks.sums.size()),
                 .num_rows = static_cast<int>(partials.rounded[0].shape[0]),
                 .is_dense = partials.to[0].shape[0] != partials.rounded[0].shape[0]};
  std::ranges::copy(tensor_rows(partials.to), sum.own);
  std::ranges::copy(wire_rows(partials.to, partials.wire_types, partials.wire), sum.wire);
  std::ranges::copy(tensor_rows(partials.rounded), sum.rounded);
  const std::size_t count = partials.to.size();
  const bool is_wide = wire_type(partials.wire_types, 0) == DType::Float32;
  for (std::size_t t = 0; t < count; ++t) {
    use_units(sum.own[t], kLargestUnit);
    use_units(sum.wire[t], is_wide ? kLargestUnit : kHalfUnit);
    use_units(sum.rounded[t], kHalfUnit);
  }
  if (sum.num_rows == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(sum.num_rows, kWarps)),
                  static_cast<unsigned>(count));
  if (partials.rounded[0].dtype == DType::Float16) {
    launch<__half>(sum, grid, is_wide, stream);
  } else {
    MAGI_CHECK(partials.rounded[0].dtype == DType::BFloat16);
    launch<__nv_bfloat16>(sum, grid, is_wide, stream);
  }
  cuda_check(cudaGetLastError(), "round_sums_kernel");
}

}  // namespace magi::comm
