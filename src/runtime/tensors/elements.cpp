// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensors/elements.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.hpp"
#include "base/half.hpp"
#include "runtime/tensors/device_elements.hpp"

namespace magi {
namespace {

struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

double load(double value) { return value; }
double load(Float16 value) { return float16_to_float(value.bits); }
double load(BFloat16 value) { return bfloat16_to_float(value.bits); }

void store(double value, double& target) { target = value; }
void store(double value, float& target) { target = static_cast<float>(value); }
void store(double value, Float16& target) {
  target.bits = float_to_float16(static_cast<float>(value));
}
void store(double value, BFloat16& target) {
  target.bits = float_to_bfloat16(static_cast<float>(value));
}

template <typename Visitor>
void with_floating_type(DType dtype, const Visitor& visitor) {
  switch (dtype) {
    case DType::Float64:
      return visitor(double{});
    case DType::Float32:
      return visitor(float{});
    case DType::Float16:
      return visitor(Float16{});
    case DType::BFloat16:
      return visitor(BFloat16{});
    case DType::Int32:
    case DType::Int64:
      break;
  }
  throw invalid("dtype", dtype_name(dtype), "a floating-point type");
}

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
    with_floating_type(dtype, [&](auto element) {
      store(value, element);
      keep(element);
    });
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

bool is_floating(DType dtype) { return dtype != DType::Int32 && dtype != DType::Int64; }

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
  with_floating_type(source.dtype, [&](auto source_type) {
    with_floating_type(target.dtype, [&](auto target_type) {
      for_each_run(source, target, [](std::byte* from, std::byte* to, std::int64_t count) {
        const auto* values = reinterpret_cast<const decltype(source_type)*>(from);
        auto* results = reinterpret_cast<decltype(target_type)*>(to);
        for (std::int64_t i = 0; i < count; ++i) store(load(values[i]), results[i]);
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
