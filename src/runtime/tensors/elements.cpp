// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensors/elements.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.hpp"
#include "base/element.hpp"
#include "runtime/tensors/device_elements.hpp"

namespace magi {
namespace {

/// Calls run(a, b, n) for all runs of n elements that are contiguous in both tensors, in row-major
/// order. Axes that are contiguous in both fold into the run.
template <typename Run>
void for_each_run(const TensorView& a, const TensorView& b, const Run& run) {
  if (a.num_elements() == 0) return;
  std::int64_t run_length = 1;
  auto axes = static_cast<std::size_t>(a.rank);
  while (axes > 0) {
    const std::size_t last = axes - 1;
    const bool is_contiguous = a.stride[last] == run_length && b.stride[last] == run_length;
    if (a.shape[last] != 1 && !is_contiguous) break;
    run_length *= a.shape[last];
    axes = last;
  }
  const auto a_bytes = static_cast<std::int64_t>(dtype_bytes(a.dtype));
  const auto b_bytes = static_cast<std::int64_t>(dtype_bytes(b.dtype));
  std::array<std::int64_t, kMaxTensorRank> index{};
  for (;;) {
    std::int64_t a_offset = 0;
    std::int64_t b_offset = 0;
    for (std::size_t axis = 0; axis < axes; ++axis) {
      a_offset += index[axis] * a.stride[axis];
      b_offset += index[axis] * b.stride[axis];
    }
    run(static_cast<std::byte*>(a.data) + a_offset * a_bytes,
        static_cast<std::byte*>(b.data) + b_offset * b_bytes, run_length);
    std::size_t axis = axes;
    while (axis > 0 && ++index[axis - 1] == a.shape[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

void require_same_shape(const TensorView& source, const TensorView& target) {
  MAGI_CHECK(source.rank == target.rank);
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(source.rank); ++axis) {
    MAGI_CHECK(source.shape[axis] == target.shape[axis]);
  }
}

/// The bits of a value in an element type.
std::uint64_t bits_of(double value, DType dtype) {
  std::uint64_t bits = 0;
  const auto keep = [&bits](auto element) { std::memcpy(&bits, &element, sizeof(element)); };
  if (dtype == DType::Int32) {
    keep(static_cast<std::int32_t>(value));
  } else if (dtype == DType::Int64) {
    keep(static_cast<std::int64_t>(value));
  } else {
    with_float_type(dtype, [&]<typename Element>(Element) { keep(narrowed<Element>(value)); });
  }
  return bits;
}

template <typename Bits>
void fill_runs(const TensorView& target, Bits bits) {
  for_each_run(target, target, [bits](std::byte* data, std::byte*, std::int64_t count) {
    std::fill_n(reinterpret_cast<Bits*>(data), count, bits);
  });
}

}  // namespace

void copy_elements(const TensorView& source, const TensorView& target, void* stream) {
  require_same_shape(source, target);
  MAGI_CHECK(source.dtype == target.dtype);
  if (target.device != kCpuDevice) return copy_device_elements(source, target, stream);
  const std::size_t bytes = dtype_bytes(source.dtype);
  for_each_run(source, target, [bytes](std::byte* from, std::byte* to, std::int64_t count) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * bytes);
  });
}

void convert_elements(const TensorView& source, const TensorView& target, void* stream) {
  if (target.device != kCpuDevice) return convert_device_elements(source, target, stream);
  if (source.dtype == target.dtype) return copy_elements(source, target);
  require_same_shape(source, target);
  with_float_type(source.dtype, [&]<typename From>(From) {
    with_float_type(target.dtype, [&]<typename To>(To) {
      for_each_run(source, target, [](std::byte* from, std::byte* to, std::int64_t count) {
        const auto* values = reinterpret_cast<const From*>(from);
        auto* results = reinterpret_cast<To*>(to);
        for (std::int64_t i = 0; i < count; ++i) results[i] = narrowed<To>(widened(values[i]));
      });
    });
  });
}

void fill_elements(const TensorView& target, double value, void* stream) {
  const std::uint64_t bits = bits_of(value, target.dtype);
  if (target.device != kCpuDevice) return fill_device_elements(target, bits, stream);
  switch (dtype_bytes(target.dtype)) {
    case 8:
      return fill_runs(target, bits);
    case 4:
      return fill_runs(target, static_cast<std::uint32_t>(bits));
    default:
      return fill_runs(target, static_cast<std::uint16_t>(bits));
  }
}

void clear_elements(const TensorView& target, void* stream) {
  if (target.device != kCpuDevice) return clear_device_elements(target, stream);
  fill_elements(target, 0.0);
}

}  // namespace magi
