// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.hpp"
#include "comm/device_rows/device_rounding.hpp"
#include "comm/device_rows/device_row_layout.cuh"
#include "cuda/element.cuh"
#include "cuda/launch.cuh"

// The last sum of a pass: own part and partials are read once, the result is written once, in its
// own type. Adding to float32 rows and rounding those afterwards moves twice as many bytes. Kernels
// differ in what they wait for before.
namespace magi::comm::rounding {

inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kLoadsAhead = 4;

struct RoundedSum {
  DeviceRows own[kMaxTensors] = {}, wire[kMaxTensors] = {}, rounded[kMaxTensors] = {};
  const SumTask* tasks = nullptr;
  const std::int32_t* parts = nullptr;
  int num_tasks = 0;
  int num_rows = 0;
  int num_row_blocks = 0;  ///< of a tensor
  bool is_dense = false;   ///< `own` has only the rows that something is added to
};

/// The place of the first task that ends after a row; num_tasks: there is none.
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

__device__ __forceinline__ float4 not_a_number() {
  const float value = __int_as_float(0x7fffffff);
  return {value, value, value, value};
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

/// A warp for each row, the blocks of one tensor after those of the other. `are_whole`: the
/// partials are there.
template <typename Element, bool kIsWide>
__device__ __forceinline__ void round_row(const RoundedSum& sum, bool are_whole) {
  const int tensor = static_cast<int>(blockIdx.x) / sum.num_row_blocks;
  const int row_block = static_cast<int>(blockIdx.x) - tensor * sum.num_row_blocks;
  const int row = row_block * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (row >= sum.num_rows) return;
  const DeviceRows own = sum.own[tensor];
  const DeviceRows wire = sum.wire[tensor];
  const DeviceRows target = sum.rounded[tensor];
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
          if (!are_whole) held[k] = not_a_number();
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

/// The sum as kernels see it; `partials` can be rounded (can_round_sums).
RoundedSum make_sum(const Partials& partials);

/// Blocks for all tensors' rows.
unsigned count_blocks(const Partials& partials);

/// Launches the kernel of an element type that `kernel_of` names for wide or narrow partials.
template <typename Params, typename KernelOf>
void launch(const Params& params, const Partials& partials, cudaStream_t stream,
            const KernelOf& kernel_of) {
  const bool is_wide = wire_type(partials.wire_types, 0) == DType::Float32;
  MAGI_CHECK(partials.rounded[0].dtype == DType::Float16 ||
             partials.rounded[0].dtype == DType::BFloat16);
  const auto kernel = partials.rounded[0].dtype == DType::Float16
                          ? kernel_of(__half{}, is_wide)
                          : kernel_of(__nv_bfloat16{}, is_wide);
  launch_ahead(kernel, count_blocks(partials), kThreads, 0, params, stream);
}

}  // namespace magi::comm::rounding
