// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/math.hpp"
#include "comm/device_rounding.hpp"
#include "comm/device_row_layout.cuh"
#include "comm/peer_wait.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/order.cuh"

// The last sum of a pass: own part and partials are read once, the result is written once, in its
// own type. Adding to float32 rows and rounding those afterwards moves twice as many bytes.
namespace magi::comm {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kLoadsAhead = 4;
constexpr std::int64_t kHalfUnit = 8;  ///< bytes of four 16-bit elements
/// That may wait for peers, an eighth of a multiprocessor each: the others are enough for whatever
/// else the peers may be waiting for.
constexpr unsigned kMostWaitingRowBlocks = 32;

struct RoundedSum {
  DeviceRows own[kMaxTensors] = {}, wire[kMaxTensors] = {}, rounded[kMaxTensors] = {};
  const SumTask* tasks = nullptr;
  const std::int32_t* parts = nullptr;
  int num_tasks = 0;
  int num_rows = 0;
  int num_row_blocks = 0;  ///< of a tensor
  bool is_dense = false;   ///< `own` has only the rows that something is added to
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

/// A warp for each row, the blocks of one tensor behind those of the other. `are_whole`: the
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

template <typename Element, bool kIsWide>
__global__ __launch_bounds__(kThreads) void round_sums_kernel(
    const __grid_constant__ RoundedSum sum) {
  ptx::await_kernels_before();
  round_row<Element, kIsWide>(sum, true);
}

struct ArrivingSum {
  RoundedSum sum;
  PeerView view;
  RowArrival arrival;
};

/// The first block tells the peers of what this rank has written for them.
template <typename Element, bool kIsWide>
__global__ __launch_bounds__(kThreads) void round_arriving_kernel(
    const __grid_constant__ ArrivingSum params) {
  ptx::await_kernels_before();
  bool are_whole = true;
  if (threadIdx.x < 32) {
    const std::uint64_t pass = params.view.state->pass;
    const bool is_telling = params.arrival.is_telling && blockIdx.x == 0;
    if (is_telling) tell_written(params.view, params.arrival, pass);
    are_whole = has_arrived(params.view, params.arrival, pass);
    ptx::fence_system();
  }
  round_row<Element, kIsWide>(params.sum, __syncthreads_and(are_whole) != 0);
}

unsigned count_row_blocks(const Partials& partials) {
  return static_cast<unsigned>(ceil_div(static_cast<int>(partials.rounded[0].shape[0]), kWarps));
}
unsigned count_blocks(const Partials& partials) {
  return count_row_blocks(partials) * static_cast<unsigned>(partials.to.size());
}

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

RoundedSum make_sum(const Partials& partials) {
  RoundedSum sum{.tasks = partials.tasks.sums.data(),
                 .parts = partials.tasks.parts.data(),
                 .num_tasks = static_cast<int>(partials.tasks.sums.size()),
                 .num_rows = static_cast<int>(partials.rounded[0].shape[0]),
                 .num_row_blocks = static_cast<int>(count_row_blocks(partials)),
                 .is_dense = partials.to[0].shape[0] != partials.rounded[0].shape[0]};
  std::ranges::copy(tensor_rows(partials.to), sum.own);
  std::ranges::copy(wire_rows(partials.to, partials.wire_types, partials.wire), sum.wire);
  std::ranges::copy(tensor_rows(partials.rounded), sum.rounded);
  const bool is_wide = wire_type(partials.wire_types, 0) == DType::Float32;
  for (std::size_t t = 0; t < partials.to.size(); ++t) {
    use_units(sum.own[t], kLargestUnit);
    use_units(sum.wire[t], is_wide ? kLargestUnit : kHalfUnit);
    use_units(sum.rounded[t], kHalfUnit);
  }
  return sum;
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
  if (count_blocks(partials) == 0) return;
  launch(make_sum(partials), partials, stream, []<typename Element>(Element, bool is_wide) {
    return is_wide ? round_sums_kernel<Element, true> : round_sums_kernel<Element, false>;
  });
}

bool launch_round_arriving(const Partials& partials, const PeerView& view,
                           const RowArrival& arrival, cudaStream_t stream) {
  const unsigned num_blocks = count_blocks(partials);
  if (num_blocks == 0 || num_blocks > kMostWaitingRowBlocks) return false;
  launch(ArrivingSum{make_sum(partials), view, arrival}, partials, stream,
         []<typename Element>(Element, bool is_wide) {
           return is_wide ? round_arriving_kernel<Element, true>
                          : round_arriving_kernel<Element, false>;
         });
  return true;
}

}  // namespace magi::comm
