// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/memory.hpp"
#include "magi/tensor.hpp"
#include "support/gpu/pool_memory.hpp"

namespace magi::test {

/// How a tensor [rows, heads, dim] lies in its buffer.
enum class Layout : std::int32_t { Contiguous, PaddedRows, HeadMajor };

/// A device tensor inside a larger buffer whose every other byte is 0xff (NaN in each float type),
/// before, behind and between its elements.
class GuardedTensor {
 public:
  GuardedTensor(DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t dim,
                Layout layout = Layout::Contiguous);

  std::int64_t rows() const { return shape_[0]; }
  std::int64_t heads() const { return shape_[1]; }
  std::int64_t dim() const { return shape_[2]; }

  /// Host side, rounded to the tensor's type.
  void set(std::int64_t row, std::int64_t head, std::int64_t d, double value);
  double get(std::int64_t row, std::int64_t head, std::int64_t d) const;
  std::uint32_t bits(std::int64_t row, std::int64_t head, std::int64_t d) const;

  void upload_sync();
  void download_sync();
  /// Whether every byte outside the elements is still 0xff.
  bool has_whole_guards() const;

  /// Whether elements and guards have the same bits; the tensors are alike in shape and layout.
  bool has_same_bytes(const GuardedTensor& other) const { return host_ == other.host_; }

  /// [rows, heads, dim], or what is left without the last axis where rank is 2 (dim 1).
  TensorView view(std::int32_t rank = 3) const;

 private:
  std::size_t offset_bytes(std::int64_t row, std::int64_t head, std::int64_t d) const;

  DType dtype_;
  std::int64_t shape_[3];
  std::int64_t stride_[3];
  std::vector<std::uint8_t> host_;
  StreamBuffer device_;
};

/// The first rows of a tensor in one of their own; where they were they become NaN.
GuardedTensor take_first_rows_sync(GuardedTensor& all, std::int64_t num_rows, Layout layout);

}  // namespace magi::test
