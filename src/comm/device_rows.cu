// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <numeric>

#include "base/check.hpp"
#include "comm/device_rows.hpp"
#include "cuda/check.hpp"

// A block per task of up to 32 rows, a warp per row, neighbouring lanes on neighbouring units. The
// work is bound by memory; four loads of a lane are under way at a time.
namespace magi::comm {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kLoadsAhead = 4;
constexpr int kLargestUnit = 16;

/// One tensor of an exchange; strides in bytes.
struct TensorRows {
  std::byte* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t wire_offset = 0;  ///< within a wire row
  std::int32_t row_units = 0;
  std::int32_t head_units = 1;  ///< = row_units where the heads follow each other without a gap
};

struct RowCopy {
  TensorRows tensors[kMaxRowTensors];
  std::byte* wire = nullptr;
  std::int64_t wire_row_bytes = 0;
  const RowTask* tasks = nullptr;
};

template <typename Unit>
__device__ __forceinline__ Unit* unit_of(const TensorRows& tensor, std::byte* row, int unit) {
  const int head = tensor.head_units == tensor.row_units ? 0 : unit / tensor.head_units;
  const int in_head = unit - head * tensor.head_units;
  return reinterpret_cast<Unit*>(row + head * tensor.head_stride) + in_head;
}

template <typename Unit, bool kToWire>
__device__ __forceinline__ void copy_row(const TensorRows& tensor, std::byte* row, std::byte* wire,
                                         int lane) {
  Unit* wire_units = reinterpret_cast<Unit*>(wire);
  for (int first = lane; first < tensor.row_units; first += 32 * kLoadsAhead) {
    Unit held[kLoadsAhead];
#pragma unroll
    for (int i = 0; i < kLoadsAhead; ++i) {
      const int unit = first + 32 * i;
      if (unit >= tensor.row_units) continue;
      held[i] = kToWire ? *unit_of<Unit>(tensor, row, unit) : wire_units[unit];
    }
#pragma unroll
    for (int i = 0; i < kLoadsAhead; ++i) {
      const int unit = first + 32 * i;
      if (unit >= tensor.row_units) continue;
      *(kToWire ? wire_units + unit : unit_of<Unit>(tensor, row, unit)) = held[i];
    }
  }
}

template <typename Unit, bool kToWire>
__global__ __launch_bounds__(kThreads) void copy_rows_kernel(const __grid_constant__ RowCopy copy) {
  const RowTask task = copy.tasks[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < task.num_rows; i += kWarps) {
    std::byte* wire = copy.wire + (task.wire_row + i) * copy.wire_row_bytes;
#pragma unroll
    for (int t = 0; t < static_cast<int>(kMaxRowTensors); ++t) {
      const TensorRows& tensor = copy.tensors[t];  // without units where there is no such tensor
      copy_row<Unit, kToWire>(tensor, tensor.data + (task.local_row + i) * tensor.row_stride,
                              wire + tensor.wire_offset, lane);
    }
  }
}

struct RowSum {
  TensorRows tensors[kMaxRowTensors];  ///< units are elements of the sum
  const std::byte* wire = nullptr;
  std::int64_t wire_row_bytes = 0;
  const SumTask* tasks = nullptr;
  const std::int32_t* parts = nullptr;
};

template <typename Sum, typename Wire>
__device__ __forceinline__ void add(Sum& sum, const Wire& value) {
  sum += static_cast<Sum>(value);
}
template <>
__device__ __forceinline__ void add(float4& sum, const float4& value) {
  sum.x += value.x;
  sum.y += value.y;
  sum.z += value.z;
  sum.w += value.w;
}

template <typename Sum, typename Wire>
__global__ __launch_bounds__(kThreads) void add_rows_kernel(
    const __grid_constant__ RowSum add_rows) {
  const SumTask task = add_rows.tasks[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < task.num_rows; i += kWarps) {
#pragma unroll
    for (int t = 0; t < static_cast<int>(kMaxRowTensors); ++t) {
      const TensorRows& tensor = add_rows.tensors[t];
      std::byte* row = tensor.data + (task.row + i) * tensor.row_stride;
      for (int unit = lane; unit < tensor.row_units; unit += 32) {
        Sum* target = unit_of<Sum>(tensor, row, unit);
        Sum sum = *target;
        for (int p = task.first_part; p < task.first_part + task.num_parts; ++p) {
          const std::byte* wire = add_rows.wire +
                                  (add_rows.parts[p] + i) * add_rows.wire_row_bytes +
                                  tensor.wire_offset;
          add(sum, reinterpret_cast<const Wire*>(wire)[unit]);
        }
        *target = sum;
      }
    }
  }
}

std::int64_t head_elements(const TensorView& tensor) {
  return tensor.rank == 3 ? tensor.shape[2] : tensor.shape[1];
}
std::int64_t num_heads(const TensorView& tensor) { return tensor.rank == 3 ? tensor.shape[1] : 1; }

/// The tensor in units of `unit_bytes`, with wire elements of `wire_bytes` for its `element_bytes`.
TensorRows tensor_rows(const TensorView& tensor, std::int64_t unit_bytes, std::int64_t offset) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  const std::int64_t head_bytes = head_elements(tensor) * element;
  TensorRows rows{
      .data = static_cast<std::byte*>(tensor.data),
      .row_stride = tensor.stride[0] * element,
      .head_stride = tensor.rank == 3 ? tensor.stride[1] * element : head_bytes,
      .wire_offset = offset,
      .row_units = static_cast<std::int32_t>(num_heads(tensor) * head_bytes / unit_bytes),
      .head_units = static_cast<std::int32_t>(head_bytes / unit_bytes)};
  if (num_heads(tensor) <= 1 || rows.head_stride == head_bytes) rows.head_units = rows.row_units;
  return rows;
}

/// The largest unit of which everything about the tensor is a multiple.
std::int64_t unit_bytes(const TensorView& tensor) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  std::int64_t unit = std::gcd(std::int64_t{kLargestUnit}, head_elements(tensor) * element);
  unit = std::gcd(unit, tensor.stride[0] * element);
  if (tensor.rank == 3) unit = std::gcd(unit, tensor.stride[1] * element);
  return std::gcd(unit, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data) %
                                                  kLargestUnit));
}

std::int64_t unit_bytes(std::span<const TensorView> tensors, const void* wire) {
  auto unit =
      std::gcd(std::int64_t{kLargestUnit},
               static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(wire) % kLargestUnit));
  for (const TensorView& tensor : tensors) unit = std::gcd(unit, unit_bytes(tensor));
  return std::gcd(unit, wire_row_bytes(tensors));
}

template <bool kToWire>
void copy_rows(std::span<const TensorView> tensors, const void* wire, TaskList tasks,
               cudaStream_t stream) {
  MAGI_CHECK(tensors.size() <= kMaxRowTensors);
  const std::int64_t unit = unit_bytes(tensors, wire);
  RowCopy copy;
  copy.wire = static_cast<std::byte*>(const_cast<void*>(wire));
  copy.tasks = tasks.tasks;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    copy.tensors[t] = tensor_rows(tensors[t], unit, copy.wire_row_bytes);
    copy.wire_row_bytes += wire_row_bytes(tensors.subspan(t, 1));
  }
  if (tasks.count == 0 || copy.wire_row_bytes == 0) return;
  const auto launch = [&]<typename Unit>(Unit) {
    copy_rows_kernel<Unit, kToWire><<<tasks.count, kThreads, 0, stream>>>(copy);
  };
  switch (unit) {
    case 16:
      launch(uint4{});
      break;
    case 8:
      launch(uint2{});
      break;
    case 4:
      launch(std::uint32_t{});
      break;
    default:
      launch(std::uint16_t{});
  }
  cuda_check(cudaGetLastError(), "copy_rows_kernel");
}

}  // namespace

std::int64_t wire_row_bytes(std::span<const TensorView> tensors) {
  std::int64_t bytes = 0;
  for (const TensorView& tensor : tensors) {
    bytes += num_heads(tensor) * head_elements(tensor) *
             static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  }
  return bytes;
}

void rows_to_wire(std::span<const TensorView> tensors, void* wire, TaskList tasks,
                  cudaStream_t stream) {
  copy_rows<true>(tensors, wire, tasks, stream);
}

void rows_from_wire(std::span<const TensorView> tensors, const void* wire, TaskList tasks,
                    cudaStream_t stream) {
  copy_rows<false>(tensors, wire, tasks, stream);
}

void add_rows_from_wire(std::span<const TensorView> tensors, const void* wire, DType wire_type,
                        SumList sums, cudaStream_t stream) {
  MAGI_CHECK(!tensors.empty() && tensors.size() <= kMaxRowTensors);
  const DType sum_type = tensors[0].dtype;
  const auto ratio = [&](std::int64_t bytes) {
    return bytes / static_cast<std::int64_t>(dtype_bytes(sum_type)) *
           static_cast<std::int64_t>(dtype_bytes(wire_type));
  };
  const bool is_wide = sum_type == DType::Float32 && wire_type == DType::Float32 &&
                       unit_bytes(tensors, wire) == kLargestUnit;
  const auto unit = is_wide ? kLargestUnit : static_cast<std::int64_t>(dtype_bytes(sum_type));
  RowSum sum;
  sum.wire = static_cast<const std::byte*>(wire);
  sum.tasks = sums.tasks;
  sum.parts = sums.parts;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    MAGI_CHECK(tensors[t].dtype == sum_type);
    sum.tensors[t] = tensor_rows(tensors[t], unit, sum.wire_row_bytes);
    sum.wire_row_bytes += ratio(wire_row_bytes(tensors.subspan(t, 1)));
  }
  if (sums.count == 0 || sum.wire_row_bytes == 0) return;
  const auto launch = [&]<typename Sum, typename Wire>(Sum, Wire) {
    add_rows_kernel<Sum, Wire><<<sums.count, kThreads, 0, stream>>>(sum);
    cuda_check(cudaGetLastError(), "add_rows_kernel");
  };
  if (is_wide) return launch(float4{}, float4{});
  if (sum_type == DType::Float64 && wire_type == DType::Float64) return launch(0.0, 0.0);
  MAGI_CHECK(sum_type == DType::Float32);
  if (wire_type == DType::Float32) return launch(0.0f, 0.0f);
  if (wire_type == DType::Float16) return launch(0.0f, __half{});
  MAGI_CHECK(wire_type == DType::BFloat16);
  launch(0.0f, __nv_bfloat16{});
}

}  // namespace magi::comm
