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

/// A tensor's rows as bytes: runs of `head_units` bytes, `head_stride` apart.
DeviceRows rows_in_bytes(const TensorView& tensor) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  DeviceRows rows{.data = static_cast<std::byte*>(tensor.data)};
  if (tensor.rank == 0) return rows;
  std::int64_t run = 1;
  auto axis = static_cast<std::size_t>(tensor.rank) - 1;
  for (; axis > 0 && (tensor.shape[axis] == 1 || tensor.stride[axis] == run); --axis) {
    run *= tensor.shape[axis];
  }
  std::int64_t total = run;
  for (; axis > 0; --axis) {
    if (tensor.shape[axis] == 1) continue;
    if (rows.head_stride != 0) {
      throw invalid("tensor.stride[" + std::to_string(axis) + "]", tensor.stride[axis],
                    "at most one strided axis beyond the rows, on a GPU");
    }
    rows.head_stride = tensor.stride[axis] * element;
    total *= tensor.shape[axis];
  }
  rows.row_stride = tensor.stride[0] * element;
  rows.row_units = static_cast<std::int32_t>(total * element);
  rows.head_units = static_cast<std::int32_t>(run * element);
  return rows;
}

DeviceRows in_units(DeviceRows rows, std::int64_t unit_bytes) {
  rows.row_units = static_cast<std::int32_t>(rows.row_units / unit_bytes);
  rows.head_units = static_cast<std::int32_t>(rows.head_units / unit_bytes);
  return rows;
}

/// The largest unit up to `unit` of which everything about the rows is a multiple.
std::int64_t common_unit(const DeviceRows& rows, std::int64_t unit) {
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows.data));
  unit = std::gcd(std::gcd(unit, address), rows.row_stride);
  return std::gcd(std::gcd(unit, std::int64_t{rows.head_units}), rows.head_stride);
}

/// The rows of each tensor, or its part of the wire's rows where `wire` is given.
struct RowsList {
  std::vector<DeviceRows> rows;

  RowsList(std::span<const TensorView> tensors, const std::byte* wire) {
    std::int64_t offset = 0;
    for (const TensorView& tensor : tensors) {
      rows.push_back(rows_in_bytes(tensor));
      DeviceRows& last = rows.back();
      if (wire == nullptr) continue;
      last.data = const_cast<std::byte*>(wire) + offset;
      last.head_units = last.row_units;
      last.head_stride = 0;
      offset += last.row_units;
    }
    if (wire == nullptr) return;
    for (DeviceRows& each : rows) each.row_stride = offset;
  }
};

void copy_lists(const RowsList& from, const RowsList& to, std::span<const RowTask> tasks,
                bool is_from_wire, cudaStream_t stream) {
  if (tasks.empty()) return;
  std::int64_t unit = kLargestUnit;
  for (const RowsList* list : {&from, &to}) {
    for (const DeviceRows& rows : list->rows) unit = common_unit(rows, unit);
  }
  const auto launch = [&]<typename Unit>(const RowCopy& copy, Unit) {
    const auto num_blocks = static_cast<unsigned>(tasks.size());
    copy_rows_kernel<Unit><<<num_blocks, kThreads, 0, stream>>>(copy);
    cuda_check(cudaGetLastError(), "copy_rows_kernel");
  };
  for (std::size_t first = 0; first < from.rows.size(); first += kMaxTensorsAtOnce) {
    RowCopy copy;
    copy.tasks = tasks.data();
    copy.is_from_wire = is_from_wire;
    for (std::size_t t = first; t < std::min(first + kMaxTensorsAtOnce, from.rows.size()); ++t) {
      copy.from[t - first] = in_units(from.rows[t], unit);
      copy.to[t - first] = in_units(to.rows[t], unit);
    }
    if (unit == 16) {
      launch(copy, uint4{});
    } else if (unit == 8) {
      launch(copy, uint2{});
    } else if (unit == 4) {
      launch(copy, std::uint32_t{});
    } else {
      launch(copy, std::uint16_t{});
    }
  }
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

/// The same with the elements of a target and of the wire, which are as wide or narrower.
template <typename Body>
void with_floats(DType target_type, DType wire_type, Body body) {
  with_float(target_type, [&]<typename Target>(Target) {
    with_float(wire_type, [&]<typename Wire>(Wire) {
      if constexpr (sizeof(Wire) <= sizeof(Target)) {
        body(Target{}, Wire{});
      } else {
        throw InternalError("broken invariant: a wider wire type is refused at the call");
      }
    });
  });
}

/// Adds the partials of tensors [first, first + count), which have the same types.
void add_rows(RowSum sum, const Partials& partials, std::size_t first, std::size_t count,
              cudaStream_t stream) {
  const DType target_type = partials.to[first].dtype;
  const DType wire_type = comm::wire_type(partials.wire_types, first);
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(sum.wire));
  std::int64_t unit = std::gcd(std::gcd(kLargestUnit, address), sum.wire_row_bytes);
  for (std::size_t t = 0; t < count; ++t) {
    unit = std::gcd(common_unit(sum.to[t], unit), sum.wire_offset[t]);
  }
  const bool is_wide =
      unit == kLargestUnit && target_type == DType::Float32 && wire_type == DType::Float32;
  const auto launch = [&]<typename Target, typename Wire>(Target, Wire) {
    for (std::size_t t = 0; t < count; ++t) sum.to[t] = in_units(sum.to[t], sizeof(Target));
    const auto num_blocks = static_cast<unsigned>(partials.tasks.sums.size());
    add_rows_kernel<Target, Wire><<<num_blocks, kThreads, 0, stream>>>(sum);
    cuda_check(cudaGetLastError(), "add_rows_kernel");
  };
  if (is_wide) return launch(float4{}, float4{});
  with_floats(target_type, wire_type, launch);
}

void merge_rows(RowSum sum, const Partials& partials, std::size_t first, cudaStream_t stream) {
  const TensorView& out = partials.to[first];
  const TensorView& lse = partials.to[first + 1];
  const DType lse_type = out.dtype == DType::Float64 ? DType::Float64 : DType::Float32;
  MAGI_CHECK(lse.dtype == lse_type && wire_type(partials.wire_types, first + 1) == lse_type);
  with_floats(out.dtype, wire_type(partials.wire_types, first),
              [&]<typename Target, typename Wire>(Target, Wire) {
                using Real = typename AccumulatorOf<Target>::Type;
                sum.to[0] = in_units(sum.to[0], sizeof(Target));
                sum.to[1] = in_units(sum.to[1], sizeof(Real));
                const auto num_blocks = static_cast<unsigned>(partials.tasks.sums.size());
                merge_rows_kernel<Target, Wire><<<num_blocks, kThreads, 0, stream>>>(sum);
                cuda_check(cudaGetLastError(), "merge_rows_kernel");
              });
}

}  // namespace

void pack_rows(std::span<const TensorView> from, std::byte* wire, std::span<const RowTask> tasks,
               cudaStream_t stream) {
  copy_lists({from, nullptr}, {from, wire}, tasks, false, stream);
}

void unpack_rows(const std::byte* wire, std::span<const TensorView> to,
                 std::span<const RowTask> tasks, cudaStream_t stream) {
  copy_lists({to, wire}, {to, nullptr}, tasks, true, stream);
}

void copy_rows(std::span<const TensorView> from, std::span<const TensorView> to,
               std::span<const RowTask> tasks, cudaStream_t stream) {
  copy_lists({from, nullptr}, {to, nullptr}, tasks, false, stream);
}

void combine_rows(const Partials& partials, cudaStream_t stream) {
  if (partials.tasks.sums.empty()) return;
  RowSum all;
  all.wire = partials.wire;
  all.tasks = partials.tasks.sums.data();
  all.parts = partials.tasks.parts.data();
  std::vector<DeviceRows> rows;
  std::vector<std::int64_t> offsets;
  for (std::size_t t = 0; t < partials.to.size(); ++t) {
    rows.push_back(rows_in_bytes(partials.to[t]));
    offsets.push_back(all.wire_row_bytes);
    all.wire_row_bytes += static_cast<std::int64_t>(
        static_cast<std::size_t>(rows.back().row_units) / dtype_bytes(partials.to[t].dtype) *
        dtype_bytes(wire_type(partials.wire_types, t)));
  }
  const bool is_merge = partials.kind == ExchangeKind::LseMerge;
  const auto type_of = [&](std::size_t t) {
    return std::pair(partials.to[t].dtype, wire_type(partials.wire_types, t));
  };
  for (std::size_t first = 0, count = 0; first < rows.size(); first += count) {
    const bool is_pair =
        first + 1 < rows.size() && (is_merge || type_of(first) == type_of(first + 1));
    count = is_pair ? 2 : 1;
    RowSum sum = all;
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(first), count, sum.to);
    std::copy_n(offsets.begin() + static_cast<std::ptrdiff_t>(first), count, sum.wire_offset);
    if (is_merge) {
      merge_rows(sum, partials, first, stream);
    } else {
      add_rows(sum, partials, first, count, stream);
    }
  }
}

void max_rows(const TensorView& rows, const TensorView& values, cudaStream_t stream) {
  const std::int64_t count = values.shape[0];
  if (count == 0) return;
  max_rows_kernel<<<static_cast<unsigned>(ceil_div(count, std::int64_t{kThreads})), kThreads, 0,
                    stream>>>(static_cast<const float*>(rows.data), static_cast<int>(rows.shape[0]),
                              count, static_cast<float*>(values.data));
  cuda_check(cudaGetLastError(), "max_rows_kernel");
}

}  // namespace magi::comm
