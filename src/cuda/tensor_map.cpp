// SPDX-License-Identifier: Apache-2.0
#include "cuda/tensor_map.hpp"

#include <array>
#include <cstddef>
#include <string>

#include "base/check.hpp"
#include "cuda/driver.hpp"

namespace magi {
namespace {

constexpr std::int64_t kCopyAlignment = 16;

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encode_tiled() {
  static const auto entry =
      reinterpret_cast<EncodeTiled>(driver_function("cuTensorMapEncodeTiled", 12000));
  return entry;
}

/// Bytes between neighbours along `axis`; any allowed value where there are no neighbours.
std::int64_t stride_bytes(const TensorView& tensor, std::size_t axis) {
  if (tensor.shape[axis] <= 1) return kCopyAlignment;
  return tensor.stride[axis] * static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
}

cuuint64_t size_of(const TensorView& tensor, std::size_t axis) {
  return static_cast<cuuint64_t>(tensor.shape[axis]);
}

cuuint64_t stride_of(const TensorView& tensor, std::size_t axis) {
  return static_cast<cuuint64_t>(stride_bytes(tensor, axis));
}

template <std::size_t kRank>
CUtensorMap encode(const TensorView& tensor, const std::array<cuuint64_t, kRank>& shape,
                   const std::array<cuuint64_t, kRank - 1>& strides,
                   const std::array<cuuint32_t, kRank>& box) {
  const CUtensorMapDataType type = tensor.dtype == DType::BFloat16
                                       ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  std::array<cuuint32_t, kRank> steps;
  steps.fill(1);
  CUtensorMap map{};
  const CUresult status =
      encode_tiled()(&map, type, kRank, tensor.data, shape.data(), strides.data(), box.data(),
                     steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw CudaError("cuTensorMapEncodeTiled refused a tensor", static_cast<int>(status));
  }
  return map;
}

}  // namespace

void check_copyable(std::string_view name, const TensorView& tensor) {
  const std::string prefix(name);
  if (tensor.shape[2] > 1 && tensor.stride[2] != 1) {
    throw invalid(prefix + ".stride[2]", tensor.stride[2], "1");
  }
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const std::int64_t bytes = stride_bytes(tensor, axis);
    if (bytes < 0 || bytes % kCopyAlignment != 0 || bytes >= (std::int64_t{1} << 40)) {
      throw invalid(prefix + ".stride[" + std::to_string(axis) + "]", tensor.stride[axis],
                    "multiples of 16 bytes from 0 to below 2^40 bytes");
    }
  }
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (address % kCopyAlignment != 0) {
    throw invalid(prefix + ".data mod 16", address % kCopyAlignment, "0");
  }
}

CUtensorMap make_tensor_map(const TensorView& tensor, TensorBox box) {
  return encode<3>(tensor, {size_of(tensor, 2), size_of(tensor, 1), size_of(tensor, 0)},
                   {stride_of(tensor, 1), stride_of(tensor, 0)},
                   {static_cast<cuuint32_t>(kPanelDim), static_cast<cuuint32_t>(box.heads),
                    static_cast<cuuint32_t>(box.tokens)});
}

CUtensorMap make_window_map(const TensorView& tensor, std::int32_t rows) {
  return encode<4>(
      tensor,
      {size_of(tensor, 2), size_of(tensor, 1), static_cast<cuuint64_t>(rows), size_of(tensor, 0)},
      {stride_of(tensor, 1), stride_of(tensor, 0), stride_of(tensor, 0)},
      {static_cast<cuuint32_t>(kPanelDim), 1, static_cast<cuuint32_t>(rows), 1});
}

}  // namespace magi
