// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/lse_merge.hpp"
#include "base/math.hpp"
#include "comm/device_rows/device_memory.hpp"
#include "comm/device_rows/device_rounding.hpp"
#include "comm/device_rows/device_row_layout.cuh"
#include "cuda/check.hpp"
#include "cuda/device.hpp"
#include "cuda/element.cuh"

// A block per task of up to 32 rows, a warp per row, neighbouring lanes on neighbouring units. The
// work is bound by memory; four loads of a lane are under way at a time.
namespace magi::comm {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kLoadsAhead = 4;
constexpr int kUnitsPerPiece = 32 * kLoadsAhead;  ///< that a warp adds at a time
constexpr int kMostPieces = 1024;                 ///< that a row is spread over

/// Calls visit(k, unit) for the next units of a lane, first + 32 * k, that are below `end`.
template <typename Visit>
__device__ __forceinline__ void for_ahead(int first, int end, const Visit& visit) {
#pragma unroll
  for (int k = 0; k < kLoadsAhead; ++k) {
    if (first + 32 * k < end) visit(k, first + 32 * k);
  }
}

/// A launch has a block per task and tensor.
struct RowCopy {
  DeviceRows from[kMaxTensors] = {}, to[kMaxTensors] = {};
  const RowTask* tasks = nullptr;
  bool is_from_wire = false;
};

template <typename Unit>
__global__ __launch_bounds__(kThreads) void copy_rows_kernel(const __grid_constant__ RowCopy copy) {
  const RowTask task = copy.tasks[blockIdx.x];
  const DeviceRows from = copy.from[blockIdx.y];
  const DeviceRows to = copy.to[blockIdx.y];
  const int from_row = copy.is_from_wire ? task.wire_row : task.local_row;
  const int to_row = copy.is_from_wire ? task.local_row : task.wire_row;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < task.num_rows; i += kWarps) {
    std::byte* source = row_of(from, from_row + i);
    std::byte* target = row_of(to, to_row + i);
    for (int first = lane; first < from.row_units; first += 32 * kLoadsAhead) {
      Unit held[kLoadsAhead];
      for_ahead(first, from.row_units,
                [&](int k, int unit) { held[k] = *unit_of<Unit>(from, source, unit); });
      for_ahead(first, from.row_units,
                [&](int k, int unit) { *unit_of<Unit>(to, target, unit) = held[k]; });
    }
  }
}

/// The inputs of both ways of combining; units of `to` are elements (float4 where all suits it).
struct RowSum {
  DeviceRows to[kMaxTensors] = {}, wire[kMaxTensors] = {};
  const SumTask* tasks = nullptr;
  const std::int32_t* parts = nullptr;
};

/// The type that partials are summed in.
template <typename Target>
using SumOf = std::conditional_t<sizeof(Target) == 2, float, Target>;
/// The row of lse beside them.
template <typename Target>
using LseOf = std::conditional_t<std::is_same_v<Target, float4>, float, SumOf<Target>>;

/// Element `idx` of wire data, which is aligned to 2 bytes alone (float4: to 16).
template <typename Wire>
__device__ __forceinline__ Wire load_wire(const std::byte* data, int idx) {
  constexpr std::size_t kAlignment = sizeof(Wire) == kLargestUnit ? kLargestUnit : 2;
  Wire value;
  memcpy(&value, __builtin_assume_aligned(data + idx * sizeof(Wire), kAlignment), sizeof(Wire));
  return value;
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

/// Blocks: tasks, tensors, and pieces of kUnitsPerPiece units of a row, over which long rows are
/// spread: a warp that walked one alone would wait for memory as often as it has pieces.
template <typename Target, typename Wire>
__global__ __launch_bounds__(kThreads) void add_rows_kernel(const __grid_constant__ RowSum sum) {
  const SumTask task = sum.tasks[blockIdx.x];
  const DeviceRows to = sum.to[blockIdx.y];
  const DeviceRows wire = sum.wire[blockIdx.y];
  const int begin = static_cast<int>(blockIdx.z * kUnitsPerPiece + threadIdx.x % 32);
  for (int i = static_cast<int>(threadIdx.x) / 32; i < task.num_rows; i += kWarps) {
    std::byte* row = row_of(to, task.row + i);
    for (int first = begin; first < to.row_units;
         first += static_cast<int>(gridDim.z) * kUnitsPerPiece) {
      SumOf<Target> held[kLoadsAhead];
      for_ahead(first, to.row_units, [&](int k, int unit) {
        held[k] = convert<SumOf<Target>>(*unit_of<Target>(to, row, unit));
      });
      for (int p = task.first_part; p < task.first_part + task.num_parts; ++p) {
        const std::byte* part = row_of(wire, sum.parts[p] + i);
        for_ahead(first, to.row_units,
                  [&](int k, int unit) { add(held[k], load_wire<Wire>(part, unit)); });
      }
      for_ahead(first, to.row_units, [&](int k, int unit) {
        *unit_of<Target>(to, row, unit) = convert<Target>(held[k]);
      });
    }
  }
}

/// Values of weight zero may be NaN.
template <typename Real>
__device__ __forceinline__ Real weigh(const LseWeights<Real>& weights, Real own, Real partial) {
  return (weights.own == Real{0} ? Real{0} : weights.own * own) +
         (weights.partial == Real{0} ? Real{0} : weights.partial * partial);
}
__device__ __forceinline__ float4 weigh(const LseWeights<float>& weights, const float4& own,
                                        const float4& partial) {
  return {weigh(weights, own.x, partial.x), weigh(weights, own.y, partial.y),
          weigh(weights, own.z, partial.z), weigh(weights, own.w, partial.w)};
}

/// Merges up to kLoadsAhead units a lane of one head, from `first` on, of row `i` of a task; gives
/// the merged lse.
template <typename Target, typename Wire>
__device__ __forceinline__ LseOf<Target> merge_values(const RowSum& sum, const SumTask& task, int i,
                                                      int head, int first, LseOf<Target> lse) {
  const int head_units = sum.to[0].row_units / sum.to[1].row_units;
  std::byte* row = row_of(sum.to[0], task.row + i);
  SumOf<Target> held[kLoadsAhead];
  for_ahead(first, head_units, [&](int k, int unit) {
    held[k] = convert<SumOf<Target>>(*unit_of<Target>(sum.to[0], row, head * head_units + unit));
  });
  for (int p = task.first_part; p < task.first_part + task.num_parts; ++p) {
    const auto weights =
        merge_lse(lse, load_wire<LseOf<Target>>(row_of(sum.wire[1], sum.parts[p] + i), head));
    const std::byte* wire = row_of(sum.wire[0], sum.parts[p] + i);
    for_ahead(first, head_units, [&](int k, int unit) {
      held[k] = weigh(weights, held[k],
                      convert<SumOf<Target>>(load_wire<Wire>(wire, head * head_units + unit)));
    });
    lse = weights.lse;
  }
  for_ahead(first, head_units, [&](int k, int unit) {
    *unit_of<Target>(sum.to[0], row, head * head_units + unit) = convert<Target>(held[k]);
  });
  return lse;
}

/// `sum.to` is {out, lse}. Blocks: tasks and heads; a warp for each row, as heads of one row wait
/// for nothing of each other. One block a multiprocessor is enough: aiming at more, ptxas spills.
template <typename Target, typename Wire>
__global__ __launch_bounds__(kThreads,
                             1) void merge_rows_kernel(const __grid_constant__ RowSum sum) {
  const SumTask task = sum.tasks[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head_units = sum.to[0].row_units / sum.to[1].row_units;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < task.num_rows; i += kWarps) {
    std::byte* lse_row = row_of(sum.to[1], task.row + i);
    for (int head = static_cast<int>(blockIdx.y); head < sum.to[1].row_units;
         head += static_cast<int>(gridDim.y)) {
      auto* lse = unit_of<LseOf<Target>>(sum.to[1], lse_row, head);
      const LseOf<Target> own_lse = *lse;
      LseOf<Target> merged = own_lse;
      for (int begin = 0; begin < head_units; begin += kUnitsPerPiece) {
        merged = merge_values<Target, Wire>(sum, task, i, head, begin + lane, own_lse);
      }
      __syncwarp();  // all lanes have read the lse
      if (lane == 0) *lse = merged;
    }
  }
}

template <typename Value>
__global__ __launch_bounds__(kThreads) void max_rows_kernel(const Value* rows, int num_rows,
                                                            std::int64_t count, Value* values) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  Value top = rows[i];
  for (int row = 1; row < num_rows; ++row) top = max(top, rows[row * count + i]);
  values[i] = top;
}

constexpr std::size_t kFewWords = 256, kMostWords = 8000;  ///< of a launch, whose limit is 32 KB

template <std::size_t kWords>
struct LaunchWords {
  std::uint32_t words[kWords] = {};
};

template <std::size_t kWords>
__global__ __launch_bounds__(kThreads) void write_words_kernel(
    const __grid_constant__ LaunchWords<kWords> given, std::uint32_t* target, unsigned count) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i < count) target[i] = given.words[i];
}

template <std::size_t kWords>
void launch_write(std::byte* target, std::span<const std::byte> words, cudaStream_t stream) {
  LaunchWords<kWords> given;
  std::memcpy(given.words, words.data(), words.size());
  const auto count = static_cast<unsigned>(words.size() / sizeof(std::uint32_t));
  const unsigned num_blocks = ceil_div(count, unsigned{kThreads});
  write_words_kernel<<<num_blocks, kThreads, 0, stream>>>(
      given, reinterpret_cast<std::uint32_t*>(target), count);
  cuda_check(cudaGetLastError(), "write_words_kernel");
}

std::vector<DeviceRows> rows_of(const RowSide& side) {
  if (side.wire == nullptr) return tensor_rows(side.tensors);
  return wire_rows(side.tensors, wire_types_of(side.tensors, side.tensors), side.wire);
}

/// Whether float32 rows can be combined in units of four; of a merge each head by itself.
bool is_in_largest_units(std::span<const DeviceRows> targets, std::span<const DeviceRows> sources,
                         bool is_merge) {
  if (!is_merge) return common_unit(targets, sources) == kLargestUnit;
  const std::int32_t num_heads = targets[1].row_units / static_cast<std::int32_t>(sizeof(float));
  return num_heads > 0 && targets[0].row_units % (num_heads * kLargestUnit) == 0 &&
         common_unit(targets.first(1), sources.first(1)) == kLargestUnit;
}

/// Combines the partials of the first `count` of sum.to, whose types are Target and Wire; of a
/// merge they are {out, lse}.
template <typename Target, typename Wire>
void launch_combine(RowSum sum, unsigned count, const Partials& partials, cudaStream_t stream) {
  const auto num_tasks = static_cast<unsigned>(partials.tasks.sums.size());
  const bool is_merge = partials.kind == ExchangeKind::LseMerge;
  std::int32_t most_units = 1;
  for (unsigned t = 0; t < count; ++t) {
    use_units(sum.to[t], is_merge && t == 1 ? sizeof(LseOf<Target>) : sizeof(Target));
    most_units = std::max(most_units, sum.to[t].row_units);
  }
  const auto most_blocks = [](std::int32_t wanted) {
    return static_cast<unsigned>(std::clamp(wanted, 1, kMostPieces));
  };
  if constexpr (sizeof(Wire) > sizeof(Target)) {
    throw InternalError("broken invariant: a wider wire type is refused at the call");
  } else if (!is_merge) {
    const dim3 grid(num_tasks, count, most_blocks(ceil_div(most_units, kUnitsPerPiece)));
    add_rows_kernel<Target, Wire><<<grid, kThreads, 0, stream>>>(sum);
  } else {
    const dim3 grid(num_tasks, most_blocks(sum.to[1].row_units));
    merge_rows_kernel<Target, Wire><<<grid, kThreads, 0, stream>>>(sum);
  }
  cuda_check(cudaGetLastError(), "add_rows_kernel or merge_rows_kernel");
}

}  // namespace

void DeviceMemory::copy(const RowSide& from, const RowSide& to, std::span<const RowTask> tasks,
                        void* stream) {
  if (tasks.empty()) return;
  const DeviceScope scope(device_);
  std::vector<DeviceRows> sources = rows_of(from);
  std::vector<DeviceRows> targets = rows_of(to);
  const std::int64_t unit = common_unit(sources, targets);
  RowCopy copy{.tasks = tasks.data(), .is_from_wire = from.wire != nullptr};
  for (std::size_t t = 0; t < sources.size(); ++t) {
    use_units(copy.from[t] = sources[t], static_cast<std::size_t>(unit));
    use_units(copy.to[t] = targets[t], static_cast<std::size_t>(unit));
  }
  const dim3 grid(static_cast<unsigned>(tasks.size()), static_cast<unsigned>(sources.size()));
  with_unit(unit, [&]<typename Unit>(Unit) {
    copy_rows_kernel<Unit><<<grid, kThreads, 0, queue_of(stream)>>>(copy);
  });
  cuda_check(cudaGetLastError(), "copy_rows_kernel");
}

void DeviceMemory::combine(const Partials& partials, void* stream) {
  const DeviceScope scope(device_);
  if (!partials.rounded.empty()) return launch_round_sums(partials, queue_of(stream));
  if (partials.tasks.sums.empty()) return;
  const bool is_merge = partials.kind == ExchangeKind::LseMerge;
  const std::vector<DeviceRows> to = tensor_rows(partials.to);
  const std::vector<DeviceRows> wire = wire_rows(partials.to, partials.wire_types, partials.wire);
  const auto types_of = [&](std::size_t t) {
    return std::pair(partials.to[t].dtype, wire_type(partials.wire_types, t));
  };
  RowSum sum{.tasks = partials.tasks.sums.data(), .parts = partials.tasks.parts.data()};
  for (std::size_t first = 0, end = 0; first < to.size(); first = end) {
    const auto [target, sent] = types_of(first);
    end = first + (is_merge ? 2 : 1);
    while (!is_merge && end < to.size() && types_of(end) == types_of(first)) ++end;
    const DType lse = target == DType::Float64 ? DType::Float64 : DType::Float32;
    MAGI_CHECK(!is_merge || types_of(first + 1) == std::pair(lse, lse));
    const std::span targets = std::span(to).subspan(first, end - first);
    const std::span sources = std::span(wire).subspan(first, end - first);
    std::ranges::copy(targets, sum.to);
    std::ranges::copy(sources, sum.wire);
    const auto count = static_cast<unsigned>(end - first);
    const bool is_float = target == DType::Float32 && sent == DType::Float32;
    if (is_float && is_in_largest_units(targets, sources, is_merge)) {
      launch_combine<float4, float4>(sum, count, partials, queue_of(stream));
      continue;
    }
    with_float(target, [&]<typename Target>(Target) {
      with_float(sent, [&]<typename Wire>(Wire) {
        launch_combine<Target, Wire>(sum, count, partials, queue_of(stream));
      });
    });
  }
}

void write_words(std::byte* target, std::span<const std::byte> words, cudaStream_t stream) {
  while (!words.empty()) {
    const std::size_t size = std::min(words.size(), kMostWords * sizeof(std::uint32_t));
    const bool are_few = size <= kFewWords * sizeof(std::uint32_t);
    const auto launch = are_few ? launch_write<kFewWords> : launch_write<kMostWords>;
    launch(target, words.first(size), stream);
    target += size;
    words = words.subspan(size);
  }
}

bool DeviceMemory::can_round(const Partials& partials) const { return can_round_sums(partials); }

void DeviceMemory::maximise(const TensorView& rows, const TensorView& values, void* stream) {
  const std::int64_t count = values.shape[0];
  if (count == 0) return;
  const DeviceScope scope(device_);
  const auto num_blocks = static_cast<unsigned>(ceil_div(count, std::int64_t{kThreads}));
  const auto launch = [&]<typename Value>(Value) {
    max_rows_kernel<<<num_blocks, kThreads, 0, queue_of(stream)>>>(
        static_cast<const Value*>(rows.data), static_cast<int>(rows.num_elements() / count), count,
        static_cast<Value*>(values.data));
  };
  if (values.dtype == DType::Float64) {
    launch(double{});
  } else {
    launch(float{});
  }
  cuda_check(cudaGetLastError(), "max_rows_kernel");
}

}  // namespace magi::comm
