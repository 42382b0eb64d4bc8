// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace magi {

/// Element types; the numbers are those of the C ABI.
enum class DType : std::int32_t {
  Float64 = 0,
  Float32 = 1,
  Float16 = 2,
  BFloat16 = 3,
  Int32 = 4,
  Int64 = 5
};

inline constexpr std::int32_t kMaxTensorRank = 4;
inline constexpr std::int32_t kCpuDevice = -1;

/// Bytes of one element.
std::size_t dtype_bytes(DType dtype);
/// "float32", "bfloat16", ...
const char* dtype_name(DType dtype);

/// A borrowed strided array. Attention tensors are [tokens, heads, dim], lse is [tokens, heads]
/// float32 (float64 where the inputs are float64). Strides count elements, not bytes. `device` is a
/// CUDA ordinal or kCpuDevice. A tensor with no data has data == nullptr.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::Float32;
  std::int32_t device = kCpuDevice;
  std::int32_t rank = 0;
  std::array<std::int64_t, kMaxTensorRank> shape{};
  std::array<std::int64_t, kMaxTensorRank> stride{};

  bool empty() const { return data == nullptr; }
  std::int64_t num_elements() const;
  /// The view of [begin, end) along `axis`; same data type and strides.
  TensorView slice(std::int32_t axis, std::int64_t begin, std::int64_t end) const;
};

/// A row-major view over `data`. Throws InvalidArgument for more than kMaxTensorRank extents,
/// negative ones, and more than 2^40 elements.
TensorView contiguous_view(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                           std::int32_t device = kCpuDevice);

/// The element type of a C++ type; uint16_t stands for bfloat16's bits.
template <typename Element>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<double>() {
  return DType::Float64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::Float32;
}
template <>
constexpr DType dtype_of<std::uint16_t>() {
  return DType::BFloat16;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::Int32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::Int64;
}

/// An owned row-major array in host memory, zero at first; passes as the TensorView it holds. Made
/// of a shape that contiguous_view takes.
template <typename Element>
class HostTensor {
 public:
  HostTensor() = default;
  explicit HostTensor(std::initializer_list<std::int64_t> shape)
      : view_(contiguous_view(nullptr, dtype_of<Element>(), shape)),
        elements_(static_cast<std::size_t>(view_.num_elements())) {}

  std::span<Element> elements() { return elements_; }
  std::span<const Element> elements() const { return elements_; }
  /// NOTE: the view's data is not const: constness of a tensor is not tracked beyond this point.
  operator TensorView() const {
    TensorView view = view_;
    view.data = const_cast<Element*>(elements_.data());
    return view;
  }

 private:
  TensorView view_;
  std::vector<Element> elements_;
};

}  // namespace magi
