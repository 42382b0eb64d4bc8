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

/// Calls body(element) with a value rounded to an element type.
template <typename Body>
void with_element(double value, DType dtype, const Body& body) {
  if (dtype == DType::Int32) return body(static_cast<std::int32_t>(value));
  if (dtype == DType::Int64) return body(static_cast<std::int64_t>(value));
  with_float_type(dtype, [&]<typename Element>(Element) { body(narrowed<Element>(value)); });
}

}  // namespace

void copy_elements(const TensorView& source, const TensorView& target, void* stream) {
  require_same_shape(source, target);
  if (target.device != kCpuDevice) return copy_device_elements(source, target, stream);
  if (source.dtype == target.dtype) {
    const std::size_t bytes = dtype_bytes(source.dtype);
    return for_each_run(source, target, [bytes](std::byte* from, std::byte* to, std::int64_t n) {
      std::memcpy(to, from, static_cast<std::size_t>(n) * bytes);
    });
  }
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
  with_element(value, target.dtype, [&]<typename Element>(Element element) {
    if (target.device != kCpuDevice) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, &element, sizeof(element));
      return fill_device_elements(target, bits, stream);
    }
    for_each_run(target, target, [element](std::byte* data, std::byte*, std::int64_t count) {
      std::fill_n(reinterpret_cast<Element*>(data), count, element);
    });
  });
}

void clear_elements(const TensorView& target, void* stream) {
  if (target.device != kCpuDevice) return clear_device_elements(target, stream);
  fill_elements(target, 0.0);
}

}  // namespace magi
