// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cuda/memory.hpp"
#include "runtime/tensors/elements.hpp"
#include "support/gpu/gpu_test.hpp"

// Conversions on a GPU against those in host memory, bit for bit.
namespace magi::test {
namespace {

using DeviceElementsTest = GpuTest;

/// Rows of `heads` heads with gaps between heads and rows.
TensorView rows_with_gaps(DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t dim,
                          std::int64_t gap) {
  TensorView view = contiguous_view(nullptr, dtype, {rows, heads, dim});
  view.stride[1] = dim + gap;
  view.stride[0] = heads * (dim + gap) + gap;
  return view;
}

std::size_t bytes_of(const TensorView& view) {
  return static_cast<std::size_t>(view.shape[0] * view.stride[0]) * dtype_bytes(view.dtype);
}

/// Values that have no exact place in 16 bits.
template <typename Element>
std::vector<std::uint8_t> values_of(std::size_t bytes) {
  std::vector<std::uint8_t> result(bytes);
  for (std::size_t i = 0; i < bytes / sizeof(Element); ++i) {
    const Element value = static_cast<Element>(static_cast<int>(i * 37 % 4001) - 2000) / Element{7};
    std::memcpy(result.data() + i * sizeof(Element), &value, sizeof(Element));
  }
  return result;
}

void expect_equal_to_host(TensorView source, TensorView target) {
  const auto from = source.dtype == DType::Float64 ? values_of<double>(bytes_of(source))
                                                   : values_of<float>(bytes_of(source));
  std::vector<std::uint8_t> expected(bytes_of(target), 0xa5);
  const auto device_from = to_device_sync<std::uint8_t>(from);
  const auto device_to = to_device_sync<std::uint8_t>(expected);
  source.data = const_cast<std::uint8_t*>(from.data());
  target.data = expected.data();
  copy_elements(source, target);
  source.data = device_from.data();
  target.data = device_to.data();
  source.device = target.device = 0;
  copy_elements(source, target);
  EXPECT_EQ(to_host_sync<std::uint8_t>(device_to.data(), expected.size()), expected)
      << "from " << dtype_name(source.dtype) << " to " << dtype_name(target.dtype) << ", dim "
      << source.shape[2] << ", stride " << source.stride[1];
}

TEST_F(DeviceElementsTest, ConversionsEqualTheHosts) {
  constexpr std::int64_t kRows = 37;
  constexpr std::int64_t kHeads = 3;
  for (const DType from : {DType::Float32, DType::Float64}) {
    for (const DType to : {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16}) {
      for (const std::int64_t dim : {1, 6, 8, 64}) {
        for (const std::int64_t gap : {0, 1, 4}) {
          expect_equal_to_host(rows_with_gaps(from, kRows, kHeads, dim, gap),
                               rows_with_gaps(to, kRows, kHeads, dim, 0));
          expect_equal_to_host(rows_with_gaps(from, kRows, kHeads, dim, 0),
                               rows_with_gaps(to, kRows, kHeads, dim, gap));
        }
      }
    }
  }
}

}  // namespace
}  // namespace magi::test
