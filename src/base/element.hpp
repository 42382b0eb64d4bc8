// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/check.hpp"
#include "base/half.hpp"
#include "magi/tensor.hpp"

// Elements of tensors by their type, so that a loop is written once and compiled for each.
namespace magi {

/// Elements of 16 bits as they lie in memory.
struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

inline double widened(double value) { return value; }
inline float widened(float value) { return value; }
inline float widened(Float16 value) { return float16_to_float(value.bits); }
inline float widened(BFloat16 value) { return bfloat16_to_float(value.bits); }

/// A value rounded to an element's type.
template <typename Element, typename Real>
Element narrowed(Real value) {
  if constexpr (std::is_same_v<Element, Float16>) {
    return {float_to_float16(static_cast<float>(value))};
  } else if constexpr (std::is_same_v<Element, BFloat16>) {
    return {float_to_bfloat16(static_cast<float>(value))};
  } else {
    return static_cast<Element>(value);
  }
}

inline bool is_float(DType dtype) { return dtype != DType::Int32 && dtype != DType::Int64; }

/// Calls body(element) with an element of the type. Throws InvalidArgument for integers.
template <typename Body>
void with_float_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::Float64:
      return body(double{});
    case DType::Float32:
      return body(float{});
    case DType::Float16:
      return body(Float16{});
    case DType::BFloat16:
      return body(BFloat16{});
    case DType::Int32:
    case DType::Int64:
      break;
  }
  throw invalid("dtype", dtype_name(dtype), "a floating-point type");
}

}  // namespace magi
