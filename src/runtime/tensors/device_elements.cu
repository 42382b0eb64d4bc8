// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>

#include "base/check.hpp"
#include "base/math.hpp"
#include "cuda/check.hpp"
#include "cuda/device.hpp"
#include "cuda/element.cuh"
#include "cuda/stream.hpp"
#include "runtime/tensors/device_elements.hpp"

namespace magi {
namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 4;  // elements
constexpr int kMaxBlocks = 4096;

struct Rows {
  std::byte* data;
  std::int64_t row_stride;   ///< bytes
  std::int64_t head_stride;  ///< bytes
};

struct Conversion {
  Rows source, target;
  std::int64_t num_rows;
  int row_units;
  int head_units;
};

template <typename Element>
__global__ __launch_bounds__(kThreads) void convert_kernel(const __grid_constant__ Conversion job) {
  for (std::int64_t row = blockIdx.x; row < job.num_rows; row += gridDim.x) {
    const std::byte* source = job.source.data + row * job.source.row_stride;
    std::byte* target = job.target.data + row * job.target.row_stride;
#pragma unroll 4
    for (int unit = static_cast<int>(threadIdx.x); unit < job.row_units; unit += kThreads) {
      const int head = unit / job.head_units;
      const int in_head = unit - head * job.head_units;
      const float4 value =
          reinterpret_cast<const float4*>(source + head * job.source.head_stride)[in_head];
      std::byte* place = target + head * job.target.head_stride;
      if constexpr (sizeof(Element) == 4) {
        reinterpret_cast<float4*>(place)[in_head] = value;
      } else {
        reinterpret_cast<uint2*>(place)[in_head] = rounded(value, Element{});
      }
    }
  }
}

template <typename Element>
__global__ __launch_bounds__(kThreads) void fill_kernel(Element* values, std::int64_t count,
                                                        Element value) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) values[i] = value;
}

/// A copy of tensors with any strides.
struct Copy {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  /// Units of the last axis, and how many there are of the others.
  std::int64_t shape[kMaxTensorRank] = {};
  std::int64_t source_stride[kMaxTensorRank] = {};  ///< bytes
  std::int64_t target_stride[kMaxTensorRank] = {};
};

template <typename Source, typename Target>
__global__ __launch_bounds__(kThreads) void copy_kernel(const __grid_constant__ Copy job,
                                                        std::int64_t num_units) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < num_units;
       i += step) {
    std::int64_t rest = i;
    std::int64_t from = 0;
    std::int64_t to = 0;
#pragma unroll
    for (int axis = kMaxTensorRank - 1; axis > 0; --axis) {
      const std::int64_t outer = rest / job.shape[axis];
      const std::int64_t inner = rest - outer * job.shape[axis];
      from += inner * job.source_stride[axis];
      to += inner * job.target_stride[axis];
      rest = outer;
    }
    from += rest * job.source_stride[0];
    to += rest * job.target_stride[0];
    *reinterpret_cast<Target*>(job.target + to) =
        static_cast<Target>(*reinterpret_cast<const Source*>(job.source + from));
  }
}

/// Whether all of a tensor can be read and written in units of so many bytes.
bool has_units(const TensorView& tensor, std::int64_t unit_bytes) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  const auto is_multiple = [unit_bytes](std::int64_t bytes) { return bytes % unit_bytes == 0; };
  return tensor.stride[3] == 1 && is_multiple(tensor.shape[3] * element) &&
         is_multiple(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data))) &&
         is_multiple(tensor.stride[0] * element) && is_multiple(tensor.stride[1] * element) &&
         is_multiple(tensor.stride[2] * element);
}

/// A tensor [a, b, c] as [1, a, b, c].
TensorView with_four_axes(const TensorView& tensor) {
  TensorView view = tensor;
  if (view.rank == kMaxTensorRank) return view;
  view.rank = kMaxTensorRank;
  view.shape = {1, tensor.shape[0], tensor.shape[1], tensor.shape[2]};
  view.stride = {0, tensor.stride[0], tensor.stride[1], tensor.stride[2]};
  return view;
}

Rows rows_of(const TensorView& tensor) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  return {static_cast<std::byte*>(tensor.data), tensor.stride[0] * element,
          tensor.stride[1] * element};
}

unsigned num_blocks(std::int64_t count) {
  return static_cast<unsigned>(ceil_div(count, std::int64_t{kThreads}));
}

/// target = source, both [a, b, c, d], in units of so many elements of the last axis.
template <typename Source, typename Target>
void launch_copy(const TensorView& source, const TensorView& target, std::int64_t unit_elements,
                 cudaStream_t stream) {
  Copy job{.source = static_cast<const std::byte*>(source.data),
           .target = static_cast<std::byte*>(target.data)};
  const auto source_bytes = static_cast<std::int64_t>(dtype_bytes(source.dtype));
  const auto target_bytes = static_cast<std::int64_t>(dtype_bytes(target.dtype));
  std::int64_t num_units = 1;
  for (std::size_t axis = 0; axis < kMaxTensorRank; ++axis) {
    const std::int64_t unit = axis + 1 == kMaxTensorRank ? unit_elements : 1;
    job.shape[axis] = source.shape[axis] / unit;
    job.source_stride[axis] = source.stride[axis] * unit * source_bytes;
    job.target_stride[axis] = target.stride[axis] * unit * target_bytes;
    num_units *= job.shape[axis];
  }
  if (num_units == 0) return;
  const unsigned blocks = std::min(num_blocks(num_units), unsigned{kMaxBlocks});
  copy_kernel<Source, Target><<<blocks, kThreads, 0, stream>>>(job, num_units);
  cuda_check(cudaGetLastError(), "copy_kernel");
}

template <typename Source>
void convert(const TensorView& source, const TensorView& target, cudaStream_t stream) {
  with_float(target.dtype, [&]<typename Target>(Target /*of the type that is stored*/) {
    launch_copy<Source, Target>(source, target, 1, stream);
  });
}

/// Whether float32 elements can be read four at a time, and what they become written so.
bool has_fours(const TensorView& source, const TensorView& target) {
  const auto suits = [](const TensorView& tensor) {
    return has_units(with_four_axes(tensor),
                     kUnit * static_cast<std::int64_t>(dtype_bytes(tensor.dtype)));
  };
  return source.rank < kMaxTensorRank && source.dtype == DType::Float32 &&
         target.dtype != DType::Float64 && suits(source) && suits(target);
}

void convert_fours(const TensorView& source, const TensorView& target, cudaStream_t stream) {
  const auto head_units = static_cast<int>(source.shape[2] / kUnit);
  const Conversion job{.source = rows_of(source),
                       .target = rows_of(target),
                       .num_rows = source.shape[0],
                       .row_units = static_cast<int>(source.shape[1]) * head_units,
                       .head_units = head_units};
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(source.shape[0], kMaxBlocks));
  with_float(target.dtype, [&]<typename Target>(Target /*of the type that is stored*/) {
    if constexpr (!std::is_same_v<Target, double>) {
      convert_kernel<Target><<<blocks, kThreads, 0, stream>>>(job);
    }
  });
  cuda_check(cudaGetLastError(), "convert_kernel");
}

/// Copies elements in the largest units that suit both.
void copy_units(const TensorView& source, const TensorView& target, cudaStream_t stream) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(source.dtype));
  const std::int64_t most = sizeof(uint4);
  const bool suits_both = has_units(source, most) && has_units(target, most);
  with_unit(suits_both ? most : element, [&]<typename Unit>(Unit /*of what is copied at once*/) {
    launch_copy<Unit, Unit>(source, target, std::int64_t{sizeof(Unit)} / element, stream);
  });
}

}  // namespace

void copy_device_elements(const TensorView& source, const TensorView& target, void* stream) {
  if (source.num_elements() == 0) return;
  MAGI_CHECK(source.rank >= 3);
  const DeviceScope scope(target.device);
  const cudaStream_t queue = queue_of(stream);
  if (has_fours(source, target)) return convert_fours(source, target, queue);
  const TensorView from = with_four_axes(source), to = with_four_axes(target);
  if (source.dtype == target.dtype) return copy_units(from, to, queue);
  if (source.dtype == DType::Float64) return convert<double>(from, to, queue);
  MAGI_CHECK(source.dtype == DType::Float32);
  convert<float>(from, to, queue);
}

void fill_device_elements(const TensorView& target, std::uint64_t bits, void* stream) {
  const std::int64_t count = target.num_elements();
  if (count == 0) return;
  const DeviceScope scope(target.device);
  const auto element = static_cast<std::int64_t>(dtype_bytes(target.dtype));
  with_unit(element, [&]<typename Element>(Element /*of the size of the type*/) {
    if constexpr (sizeof(Element) <= sizeof(bits)) {
      fill_kernel<<<num_blocks(count), kThreads, 0, queue_of(stream)>>>(
          static_cast<Element*>(target.data), count, static_cast<Element>(bits));
    }
  });
  cuda_check(cudaGetLastError(), "fill_kernel");
}

void clear_device_elements(const TensorView& target, void* stream) {
  const std::int64_t count = target.num_elements();
  if (count == 0) return;
  const DeviceScope scope(target.device);
  // Rows of as many heads as lie side by side are cleared at once.
  const std::int64_t width = target.rank < 3 ? target.shape[1]
                             : target.stride[1] == target.shape[2]
                                 ? target.shape[1] * target.shape[2]
                                 : target.shape[2];
  const auto element = static_cast<std::int64_t>(dtype_bytes(target.dtype));
  for (std::int64_t i = 0; i < count / (target.shape[0] * width); ++i) {
    cuda_check(
        cudaMemset2DAsync(static_cast<std::byte*>(target.data) + i * target.stride[1] * element,
                          static_cast<std::size_t>(target.stride[0] * element), 0,
                          static_cast<std::size_t>(width * element),
                          static_cast<std::size_t>(target.shape[0]), queue_of(stream)),
        "cudaMemset2DAsync");
  }
}

}  // namespace magi
