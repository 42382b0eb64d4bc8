// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/math.hpp"
#include "comm/device_rows.hpp"
#include "comm/row_layout.hpp"
#include "cuda/check.hpp"

// A block per task of up to 32 rows, a warp per row, neighbouring lanes on neighbouring units. The
// work is bound by memory; four loads of a lane are under way at a time.
namespace magi::comm {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kLoadsAhead = 4;
constexpr std::int64_t kLargestUnit = 16;  // bytes
constexpr std::size_t kMaxTensorsAtOnce = 2;

/// The rows of one tensor, or its part of the wire's rows; strides in bytes.
struct DeviceRows {
  std::byte* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int32_t row_units = 0;
  std::int32_t head_units = 1;  ///< = row_units where the heads follow each other without a gap

  __device__ std::byte* row(std::int64_t idx) const { return data + idx * row_stride; }
};

template <typename Unit>
__device__ __forceinline__ Unit* unit_of(const DeviceRows& rows, std::byte* row, int unit) {
  const int head = rows.head_units == rows.row_units ? 0 : unit / rows.head_units;
  const int in_head = unit - head * rows.head_units;
  return reinterpret_cast<Unit*>(row + head * rows.head_stride) + in_head;
}

struct RowCopy {
  DeviceRows from[kMaxTensorsAtOnce], to[kMaxTensorsAtOnce];
  const RowTask* tasks = nullptr;
  bool is_from_wire = false;
};

template <typename Unit>
__device__ __forceinline__ void copy_row(const DeviceRows& from, const DeviceRows& to,
                                         std::int64_t from_row, std::int64_t to_row, int lane) {
  std::byte* source = from.row(from_row);
  std::byte* target = to.row(to_row);
  for (int first = lane; first < from.row_units; first += 32 * kLoadsAhead) {
    Unit held[kLoadsAhead];
#pragma unroll
    for (int i = 0; i < kLoadsAhead; ++i) {
      const int unit = first + 32 * i;
      if (unit < from.row_units) held[i] = *unit_of<Unit>(from, source, unit);
    }
#pragma unroll
    for (int i = 0; i < kLoadsAhead; ++i) {
      const int unit = first + 32 * i;
      if (unit < from.row_units) *unit_of<Unit>(to, target, unit) = held[i];
    }
  }
}

template <typename Unit>
__global__ __launch_bounds__(kThreads) void copy_rows_kernel(const __grid_constant__ RowCopy copy) {
  const RowTask task = copy.tasks[blockIdx.x];
  const int from_row = copy.is_from_wire ? task.wire_row : task.local_row;
  const int to_row = copy.is_from_wire ? task.local_row : task.wire_row;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < task.num_rows; i += kWarps) {
#pragma unroll
    for (std::size_t t = 0; t < kMaxTensorsAtOnce; ++t) {  // without units where there is none
      copy_row<Unit>(copy.from[t], copy.to[t], from_row + i, to_row + i, lane);
    }
  }
}

/// What both ways of combining read; units of `to` are elements (float4 where all suits it).
struct RowSum {
  DeviceRows to[kMaxTensorsAtOnce];
  std::int64_t wire_offset[kMaxTensorsAtOnce] = {};  ///< within a wire row
  const std::byte* wire = nullptr;
  std::int64_t wire_row_bytes = 0;
  const SumTask* tasks = nullptr;
  const std::int32_t* parts = nullptr;

  __device__ const std::byte* part(int p, int row, std::size_t tensor) const {
    return wire + (parts[p] + row) * wire_row_bytes + wire_offset[tensor];
  }
};

template <typename Target>
struct AccumulatorOf {
  using Type = float;
};
template <>
struct AccumulatorOf<double> {
  using Type = double;
};
template <>
struct AccumulatorOf<float4> {
  using Type = float4;
};

/// Element `idx` of wire data, which is aligned to 2 bytes alone (float4: to 16).
template <typename Wire>
__device__ __forceinline__ Wire load_wire(const std::byte* data, int idx) {
  if constexpr (sizeof(Wire) == 2 || sizeof(Wire) == kLargestUnit) {
    return reinterpret_cast<const Wire*>(data)[idx];
  } else {
    constexpr int kHalves = sizeof(Wire) / 2;
    union {
      std::uint16_t halves[kHalves];
      Wire value;
    } joined;
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      joined.halves[i] = reinterpret_cast<const std::uint16_t*>(data)[idx * kHalves + i];
    }
    return joined.value;
  }
}

template <typename To, typename From>
__device__ __forceinline__ To convert(const From& value) {
  if constexpr (sizeof(From) == 2) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <typename Sum, typename Wire>
__device__ __forceinline__ void add(Sum& sum, const Wire& value) {
  sum += convert<Sum>(value);
}
template <>
__device__ __forceinline__ void add(float4& sum, const float4& value) {
  sum.x += value.x;
  sum.y += value.y;
  sum.z += value.z;
  sum.w += value.w;
}

template <typename Target, typename Wire>
__global__ __launch_bounds__(kThreads) void add_rows_kernel(const __grid_constant__ RowSum sum) {
  using Sum = typename AccumulatorOf<Target>::Type;
  const SumTask task = sum.tasks[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < task.num_rows; i += kWarps) {
#pragma unroll
    for (std::size_t t = 0; t < kMaxTensorsAtOnce; ++t) {
      std::byte* row = sum.to[t].row(task.row + i);
      for (int unit = lane; unit < sum.to[t].row_units; unit += 32) {
        Target* target = unit_of<Target>(sum.to[t], row, unit);
        Sum value = convert<Sum>(*target);
        for (int p = task.first_part; p < task.first_part + task.num_parts; ++p) {
          add(value, load_wire<Wire>(sum.part(p, i, t), unit));
        }
        *target = convert<Target>(value);
      }
    }
  }
}

template <typename Real>
struct LseWeights {
  Real lse, own, partial;
};

/// lse = log(exp(own) + exp(partial)) and what values weigh in it; the rule of row_sink.cpp: -inf
/// stands for a row without keys, which weighs 0, also against another -inf.
template <typename Real>
__device__ __forceinline__ LseWeights<Real> merge_lse(Real own, Real partial) {
  constexpr Real kNone = -std::numeric_limits<Real>::infinity();
  if (partial == kNone) return {own, own == kNone ? Real{0} : Real{1}, Real{0}};
  if (own == kNone) return {partial, Real{0}, Real{1}};
  const Real high = own > partial ? own : partial;
  const Real low = own > partial ? partial : own;
  const Real lse = high + log1p(exp(low - high));
  return {lse, exp(own - lse), exp(partial - lse)};
}

/// Merges up to kLoadsAhead values a lane of one head, from `first` on, of row `i` of a task; gives
/// the merged lse. Values of weight zero may be NaN.
template <typename Target, typename Wire, typename Real>
__device__ __forceinline__ Real merge_values(const RowSum& sum, const SumTask& task, int i,
                                             int head, int first, Real lse) {
  const int dim = sum.to[0].row_units / sum.to[1].row_units;
  std::byte* row = sum.to[0].row(task.row + i);
  Real held[kLoadsAhead];
#pragma unroll
  for (int k = 0; k < kLoadsAhead; ++k) {
    const int d = first + 32 * k;
    if (d < dim) held[k] = convert<Real>(*unit_of<Target>(sum.to[0], row, head * dim + d));
  }
  for (int p = task.first_part; p < task.first_part + task.num_parts; ++p) {
    const auto weights = merge_lse(lse, load_wire<Real>(sum.part(p, i, 1), head));
    const std::byte* wire = sum.part(p, i, 0);
#pragma unroll
    for (int k = 0; k < kLoadsAhead; ++k) {
      const int d = first + 32 * k;
      if (d >= dim) continue;
      const Real value = convert<Real>(load_wire<Wire>(wire, head * dim + d));
      held[k] = (weights.own == Real{0} ? Real{0} : weights.own * held[k]) +
                (weights.partial == Real{0} ? Real{0} : weights.partial * value);
    }
    lse = weights.lse;
  }
#pragma unroll
  for (int k = 0; k < kLoadsAhead; ++k) {
    const int d = first + 32 * k;
    if (d < dim) *unit_of<Target>(sum.to[0], row, head * dim + d) = convert<Target>(held[k]);
  }
  return lse;
}

/// `sum.to` is {out, lse}. One block a multiprocessor is enough: aiming at more, ptxas spills.
template <typename Target, typename Wire>
__global__ __launch_bounds__(kThreads,
                             1) void merge_rows_kernel(const __grid_constant__ RowSum sum) {
  using Real = typename AccumulatorOf<Target>::Type;
  const SumTask task = sum.tasks[blockIdx.x];
  const int num_heads = sum.to[1].row_units;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < task.num_rows; i += kWarps) {
    std::byte* lse_row = sum.to[1].row(task.row + i);
    for (int head = 0; head < num_heads; ++head) {
      Real* lse = unit_of<Real>(sum.to[1], lse_row, head);
      const Real own_lse = *lse;
      Real merged = own_lse;
      for (int begin = 0; begin * num_heads < sum.to[0].row_units; begin += 32 * kLoadsAhead) {
        merged = merge_values<Target, Wire>(sum, task, i, head, begin + lane, own_lse);
      }
      __syncwarp();  // all lanes have read the lse
      if (lane == 0) *lse = merged;
    }
  }
}

__global__ __launch_bounds__(kThreads) void max_rows_kernel(const float* rows, int num_rows,
                                                            std::int64_t count, float* values) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  float top = rows[i];
  for (int row = 1; row < num_rows; ++row) top = fmaxf(top, rows[row * count + i]);
  values[i] = top;
}

DeviceRows in_units(DeviceRows rows, std::int64_t unit_bytes) {
  rows.row_units = static_cast<std::int32_t>(rows.row_units / unit_bytes);
  rows.head_units = static_cast<std::int32_t>(rows.head_units / unit_bytes);
  return rows;
}

/// The largest unit up to `unit` of which everything about the rows, in bytes, is a multiple.
std::int64_t common_unit(const DeviceRows& rows, std::int64_t unit) {
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows.data));
  unit = std::gcd(std::gcd(unit, address), rows.row_stride);
  return std::gcd(std::gcd(unit, std::int64_t{rows.head_units}), rows.head_stride);
}

/// The rows of one side's tensors, or their parts of the wire's rows, with units of a byte.
std::vector<DeviceRows> rows_of(const RowSide& side) {
  const RowLayout layout(side.tensors);
  std::vector<DeviceRows> list;
  std::byte* wire = side.wire;
  for (const TensorRows& tensor : layout.tensors()) {
    const auto element = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
    const auto row_bytes = static_cast<std::int64_t>(tensor.num_elements) * element;
    DeviceRows rows{.data = tensor.data,
                    .row_stride = tensor.row_stride_bytes,
                    .row_units = static_cast<std::int32_t>(row_bytes),
                    .head_units = static_cast<std::int32_t>(tensor.run_elements) *
                                  static_cast<std::int32_t>(element)};
    if (side.wire != nullptr) {
      rows.data = wire;
      rows.row_stride = static_cast<std::int64_t>(layout.row_bytes());
      rows.head_units = rows.row_units;
      wire += row_bytes;
    } else if (const auto& runs = tensor.run_offsets; runs.size() > 1) {
      rows.head_stride = runs[1] * element;
      for (std::size_t i = 0; i < runs.size(); ++i) {
        if (runs[i] == static_cast<std::int64_t>(i) * runs[1]) continue;
        throw invalid("tensor.stride", "of several axes with gaps",
                      "one strided axis beyond the rows, on a GPU");
      }
    }
    list.push_back(rows);
  }
  return list;
}

template <typename Unit>
void launch_copy(const RowCopy& copy, std::size_t num_tasks, cudaStream_t stream) {
  copy_rows_kernel<Unit><<<static_cast<unsigned>(num_tasks), kThreads, 0, stream>>>(copy);
  cuda_check(cudaGetLastError(), "copy_rows_kernel");
}

/// Calls body(element) with an element of a floating-point type.
template <typename Body>
void with_float(DType dtype, Body body) {
  if (dtype == DType::Float64) return body(double{});
  if (dtype == DType::Float32) return body(float{});
  if (dtype == DType::Float16) return body(__half{});
  MAGI_CHECK(dtype == DType::BFloat16);
  body(__nv_bfloat16{});
}

/// Combines the partials of the first `count` of sum.to, whose types are Target and Wire.
template <typename Target, typename Wire>
void launch_combine(RowSum sum, std::size_t count, const Partials& partials, cudaStream_t stream) {
  const auto num_blocks = static_cast<unsigned>(partials.tasks.sums.size());
  const bool is_merge = partials.kind == ExchangeKind::LseMerge;
  using Lse = typename AccumulatorOf<Target>::Type;
  for (std::size_t t = 0; t < count; ++t) {
    sum.to[t] = in_units(sum.to[t], is_merge && t == 1 ? sizeof(Lse) : sizeof(Target));
  }
  if constexpr (sizeof(Wire) > sizeof(Target)) {
    throw InternalError("broken invariant: a wider wire type is refused at the call");
  } else if (!is_merge) {
    add_rows_kernel<Target, Wire><<<num_blocks, kThreads, 0, stream>>>(sum);
  } else if constexpr (sizeof(Target) != kLargestUnit) {
    merge_rows_kernel<Target, Wire><<<num_blocks, kThreads, 0, stream>>>(sum);
  }
  cuda_check(cudaGetLastError(), "add_rows_kernel or merge_rows_kernel");
}

}  // namespace

void copy_rows(const RowSide& from, const RowSide& to, std::span<const RowTask> tasks,
               cudaStream_t stream) {
  if (tasks.empty()) return;
  const std::vector<DeviceRows> sources = rows_of(from);
  const std::vector<DeviceRows> targets = rows_of(to);
  std::int64_t unit = kLargestUnit;
  for (const auto* list : {&sources, &targets}) {
    for (const DeviceRows& rows : *list) unit = common_unit(rows, unit);
  }
  for (std::size_t first = 0; first < sources.size(); first += kMaxTensorsAtOnce) {
    RowCopy copy;
    copy.tasks = tasks.data();
    copy.is_from_wire = from.wire != nullptr;
    for (std::size_t t = first; t < std::min(first + kMaxTensorsAtOnce, sources.size()); ++t) {
      copy.from[t - first] = in_units(sources[t], unit);
      copy.to[t - first] = in_units(targets[t], unit);
    }
    if (unit == 16) {
      launch_copy<uint4>(copy, tasks.size(), stream);
    } else if (unit == 8) {
      launch_copy<uint2>(copy, tasks.size(), stream);
    } else if (unit == 4) {
      launch_copy<std::uint32_t>(copy, tasks.size(), stream);
    } else {
      launch_copy<std::uint16_t>(copy, tasks.size(), stream);
    }
  }
}

void combine_rows(const Partials& partials, cudaStream_t stream) {
  if (partials.tasks.sums.empty()) return;
  const std::vector<DeviceRows> rows = rows_of({partials.to});
  const auto type_of = [&](std::size_t t) { return wire_type(partials.wire_types, t); };
  const bool is_merge = partials.kind == ExchangeKind::LseMerge;
  RowSum all;
  all.wire = partials.wire;
  all.wire_row_bytes = static_cast<std::int64_t>(wire_row_bytes(partials.to, partials.wire_types));
  all.tasks = partials.tasks.sums.data();
  all.parts = partials.tasks.parts.data();
  std::int64_t offset = 0;
  for (std::size_t first = 0, count = 0; first < rows.size(); first += count) {
    const DType target = partials.to[first].dtype;
    const bool is_pair =
        first + 1 < rows.size() && (is_merge || (target == partials.to[first + 1].dtype &&
                                                 type_of(first) == type_of(first + 1)));
    count = is_pair ? 2 : 1;
    const DType lse = target == DType::Float64 ? DType::Float64 : DType::Float32;
    MAGI_CHECK(!is_merge || (partials.to[first + 1].dtype == lse && type_of(first + 1) == lse));
    RowSum sum = all;
    std::int64_t unit =
        std::gcd(std::gcd(kLargestUnit,
                          static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(sum.wire))),
                 sum.wire_row_bytes);
    for (std::size_t t = 0; t < count; ++t) {
      sum.to[t] = rows[first + t];
      sum.wire_offset[t] = offset;
      unit = std::gcd(common_unit(sum.to[t], unit), offset);
      offset += static_cast<std::int64_t>(wire_row_bytes(partials.to.subspan(first + t, 1),
                                                         partials.wire_types >> 4 * (first + t)));
    }
    const bool is_float = target == DType::Float32 && type_of(first) == DType::Float32;
    if (!is_merge && is_float && unit == kLargestUnit) {
      launch_combine<float4, float4>(sum, count, partials, stream);
      continue;
    }
    with_float(target, [&]<typename Target>(Target) {
      with_float(type_of(first), [&]<typename Wire>(Wire) {
        launch_combine<Target, Wire>(sum, count, partials, stream);
      });
    });
  }
}

void max_rows(const TensorView& rows, const TensorView& values, cudaStream_t stream) {
  const std::int64_t count = values.shape[0];
  if (count == 0) return;
  max_rows_kernel<<<static_cast<unsigned>(ceil_div(count, std::int64_t{kThreads})), kThreads, 0,
                    stream>>>(static_cast<const float*>(rows.data),
                              static_cast<int>(rows.num_elements() / count), count,
                              static_cast<float*>(values.data));
  cuda_check(cudaGetLastError(), "max_rows_kernel");
}

}  // namespace magi::comm
