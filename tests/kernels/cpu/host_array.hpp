// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "magi/tensor.hpp"

namespace magi::testing {

/// Padded arrays have gaps of NaN between heads, tokens and at the end; Aligned ones too, in
/// attention tensors, but by multiples of 16 bytes.
enum class Layout { Packed, Padded, Aligned };

/// An owned tensor of any floating type that starts as NaN everywhere.
class HostArray {
 public:
  HostArray() = default;
  HostArray(DType dtype, std::vector<std::int64_t> shape, Layout layout);
  /// The same from row-major values, rounded to the type.
  HostArray(DType dtype, std::vector<std::int64_t> shape, Layout layout,
            std::span<const double> values);

  void assign(std::span<const double> values);
  /// Row-major, without the gaps.
  std::vector<double> values() const;
  /// Elements in gaps that are no longer NaN: someone wrote outside the tensor.
  std::int64_t num_spoiled_gaps() const;
  TensorView view() { return view_of(storage_); }
  /// What `view` lies in.
  std::span<std::byte> storage() { return storage_; }

 private:
  TensorView view_of(std::vector<std::byte>& storage);
  double read(std::size_t offset) const;
  void write(std::size_t offset, double value);
  template <typename Visit>
  void for_each_offset(const Visit& visit) const;

  DType dtype_ = DType::Float32;
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> stride_;
  std::vector<std::byte> storage_;
};

}  // namespace magi::testing
