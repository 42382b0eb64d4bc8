// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/math.hpp"
#include "magi/tensor.hpp"

namespace magi {

/// Host memory that grows to the largest size asked for and is kept between calls. Contents are
/// lost when it grows. Never null, so that a view of no rows still counts as given.
class Buffer {
 public:
  /// At least `num_bytes` bytes, aligned to a cache line.
  void* reserve(std::size_t num_bytes) {
    if (data_ == nullptr || num_bytes > size_bytes_) {
      data_.reset();
      size_bytes_ = align_up(num_bytes + 1, kAlignment);
      data_.reset(std::aligned_alloc(kAlignment, size_bytes_));
      if (data_ == nullptr) {
        size_bytes_ = 0;
        throw std::bad_alloc();
      }
    }
    return data_.get();
  }

  /// A row-major array in this buffer.
  TensorView view(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView result = contiguous_view(nullptr, dtype, shape);
    result.data = reserve(static_cast<std::size_t>(result.num_elements()) * dtype_bytes(dtype));
    return result;
  }

  std::size_t size_bytes() const { return size_bytes_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(void* data) const noexcept { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  std::size_t size_bytes_ = 0;
};

}  // namespace magi
