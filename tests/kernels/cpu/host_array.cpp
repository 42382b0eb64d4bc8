// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/host_array.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/element.hpp"

namespace magi::testing {

HostArray::HostArray(DType dtype, std::vector<std::int64_t> shape, Layout layout)
    : dtype_(dtype), shape_(std::move(shape)), stride_(shape_.size()) {
  const bool is_padded = layout == Layout::Padded;
  // Attention tensors keep the last axis contiguous; lse and its like need not.
  std::int64_t stride = is_padded && shape_.size() < 3 ? 2 : 1;
  const bool is_aligned = layout == Layout::Aligned && shape_.size() == 3;
  const std::int64_t gap = is_padded ? 3 : is_aligned ? 8 : 0;
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    stride_[axis] = stride;
    stride = stride * shape_[axis] + gap;
  }
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(stride, 1));
  storage_.resize(count * dtype_bytes(dtype_));
  for (std::size_t i = 0; i < count; ++i) write(i, std::numeric_limits<double>::quiet_NaN());
}

HostArray::HostArray(DType dtype, std::vector<std::int64_t> shape, Layout layout,
                     std::span<const double> values)
    : HostArray(dtype, std::move(shape), layout) {
  assign(values);
}

template <typename Visit>
void HostArray::for_each_offset(const Visit& visit) const {
  std::vector<std::int64_t> index(shape_.size(), 0);
  std::int64_t count = 1;
  for (const std::int64_t extent : shape_) count *= extent;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < shape_.size(); ++axis) offset += index[axis] * stride_[axis];
    visit(static_cast<std::size_t>(i), static_cast<std::size_t>(offset));
    for (std::size_t axis = shape_.size(); axis-- > 0;) {
      if (++index[axis] < shape_[axis]) break;
      index[axis] = 0;
    }
  }
}

void HostArray::assign(std::span<const double> values) {
  for_each_offset([&](std::size_t i, std::size_t offset) { write(offset, values[i]); });
}

std::vector<double> HostArray::values() const {
  std::vector<double> result;
  for_each_offset([&](std::size_t, std::size_t offset) { result.push_back(read(offset)); });
  return result;
}

std::int64_t HostArray::num_spoiled_gaps() const {
  std::vector<bool> is_gap(storage_.size() / dtype_bytes(dtype_), true);
  for_each_offset([&](std::size_t, std::size_t offset) { is_gap[offset] = false; });
  std::int64_t count = 0;
  for (std::size_t i = 0; i < is_gap.size(); ++i) count += is_gap[i] && !std::isnan(read(i));
  return count;
}

TensorView HostArray::view_of(std::vector<std::byte>& storage) {
  TensorView view{
      .data = storage.data(), .dtype = dtype_, .rank = static_cast<std::int32_t>(shape_.size())};
  std::copy(shape_.begin(), shape_.end(), view.shape.begin());
  std::copy(stride_.begin(), stride_.end(), view.stride.begin());
  return view;
}

double HostArray::read(std::size_t offset) const {
  double value = 0.0;
  with_float_type(dtype_, [&]<typename Element>(Element element) {
    std::memcpy(&element, storage_.data() + offset * sizeof(element), sizeof(element));
    value = widened(element);
  });
  return value;
}

void HostArray::write(std::size_t offset, double value) {
  with_float_type(dtype_, [&]<typename Element>(Element) {
    const auto element = narrowed<Element>(value);
    std::memcpy(storage_.data() + offset * sizeof(element), &element, sizeof(element));
  });
}

}  // namespace magi::testing
