// SPDX-License-Identifier: Apache-2.0
#include "support/gpu/guarded_tensor.hpp"

#include <cstring>
#include <limits>

#include "base/half.hpp"
#include "base/math.hpp"

namespace magi::test {
namespace {

constexpr std::size_t kGuardBytes = 4096;

}  // namespace

GuardedTensor::GuardedTensor(DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t dim,
                             Layout layout)
    : dtype_(dtype), shape_{rows, heads, dim}, stride_{heads * dim, dim, 1} {
  const auto unit = static_cast<std::int64_t>(16 / dtype_bytes(dtype));
  const std::int64_t padded_dim = dim == 1 ? 1 : align_up(dim, unit);
  switch (layout) {
    case Layout::Contiguous:
      stride_[1] = padded_dim;
      stride_[0] = heads * padded_dim;
      break;
    case Layout::PaddedRows:
      stride_[1] = padded_dim + (dim == 1 ? 1 : unit);
      stride_[0] = heads * stride_[1] + 3 * unit;
      break;
    case Layout::HeadMajor:
      stride_[0] = padded_dim + (dim == 1 ? 0 : unit);
      stride_[1] = (rows + 1) * stride_[0];
      break;
  }
  const std::int64_t extent = rows * stride_[0] + heads * stride_[1] + dim;
  host_.assign(static_cast<std::size_t>(extent) * dtype_bytes(dtype) + 2 * kGuardBytes, 0xff);
  device_ = pool_memory(host_.size());
}

std::size_t GuardedTensor::offset_bytes(std::int64_t row, std::int64_t head, std::int64_t d) const {
  const std::int64_t element = row * stride_[0] + head * stride_[1] + d * stride_[2];
  return kGuardBytes + static_cast<std::size_t>(element) * dtype_bytes(dtype_);
}

void GuardedTensor::set(std::int64_t row, std::int64_t head, std::int64_t d, double value) {
  std::uint8_t* target = host_.data() + offset_bytes(row, head, d);
  const auto single = static_cast<float>(value);
  if (dtype_ == DType::Float32) {
    std::memcpy(target, &single, sizeof single);
    return;
  }
  const std::uint16_t half =
      dtype_ == DType::BFloat16 ? float_to_bfloat16(single) : float_to_float16(single);
  std::memcpy(target, &half, sizeof half);
}

std::uint32_t GuardedTensor::bits(std::int64_t row, std::int64_t head, std::int64_t d) const {
  std::uint32_t value = 0;
  std::memcpy(&value, host_.data() + offset_bytes(row, head, d), dtype_bytes(dtype_));
  return value;
}

double GuardedTensor::get(std::int64_t row, std::int64_t head, std::int64_t d) const {
  const std::uint32_t value = bits(row, head, d);
  if (dtype_ == DType::Float32) return static_cast<double>(std::bit_cast<float>(value));
  const auto half = static_cast<std::uint16_t>(value);
  return static_cast<double>(dtype_ == DType::BFloat16 ? bfloat16_to_float(half)
                                                       : float16_to_float(half));
}

void GuardedTensor::upload_sync() {
  cuda_check(cudaMemcpy(device_.data(), host_.data(), host_.size(), cudaMemcpyHostToDevice),
             "cudaMemcpy");
}

void GuardedTensor::download_sync() {
  cuda_check(cudaMemcpy(host_.data(), device_.data(), host_.size(), cudaMemcpyDeviceToHost),
             "cudaMemcpy");
}

bool GuardedTensor::has_whole_guards() const {
  std::vector<std::uint8_t> bytes = host_;
  for (std::int64_t row = 0; row < shape_[0]; ++row) {
    for (std::int64_t head = 0; head < shape_[1]; ++head) {
      std::memset(bytes.data() + offset_bytes(row, head, 0), 0xff,
                  static_cast<std::size_t>(shape_[2]) * dtype_bytes(dtype_));
    }
  }
  for (const std::uint8_t byte : bytes) {
    if (byte != 0xff) return false;
  }
  return true;
}

TensorView GuardedTensor::view(std::int32_t rank) const {
  TensorView tensor;
  tensor.data = static_cast<std::uint8_t*>(device_.data()) + kGuardBytes;
  tensor.dtype = dtype_;
  tensor.device = 0;
  tensor.rank = rank;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(rank); ++axis) {
    tensor.shape[axis] = shape_[axis];
    tensor.stride[axis] = stride_[axis];
  }
  return tensor;
}

GuardedTensor take_first_rows_sync(GuardedTensor& all, std::int64_t num_rows, Layout layout) {
  GuardedTensor first(all.view().dtype, num_rows, all.heads(), all.dim(), layout);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    for (std::int64_t head = 0; head < all.heads(); ++head) {
      for (std::int64_t d = 0; d < all.dim(); ++d) {
        first.set(row, head, d, all.get(row, head, d));
        all.set(row, head, d, std::numeric_limits<double>::quiet_NaN());
      }
    }
  }
  first.upload_sync();
  all.upload_sync();
  return first;
}

}  // namespace magi::test
