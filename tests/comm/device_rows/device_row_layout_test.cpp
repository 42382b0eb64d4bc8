// SPDX-License-Identifier: Apache-2.0
#include "comm/device_rows/device_row_layout.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "magi/error.hpp"

// What kernels are told of tensors, against the tensors' own strides.
namespace magi::testing {
namespace {

using comm::DeviceRows;

TensorView strided(DType dtype, std::initializer_list<std::int64_t> shape,
                   std::initializer_list<std::int64_t> stride) {
  TensorView tensor = contiguous_view(reinterpret_cast<void*>(0x1000), dtype, shape);
  std::size_t axis = 0;
  for (const std::int64_t step : stride) tensor.stride[axis++] = step;
  return tensor;
}

/// Bytes from the tensor's data to every element, in row-major order, by its strides.
std::vector<std::int64_t> places_of(const TensorView& tensor) {
  std::vector<std::int64_t> places{0};
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(tensor.rank); ++axis) {
    std::vector<std::int64_t> next;
    for (const std::int64_t place : places) {
      for (std::int64_t i = 0; i < tensor.shape[axis]; ++i) {
        next.push_back(place + i * tensor.stride[axis] *
                                   static_cast<std::int64_t>(dtype_bytes(tensor.dtype)));
      }
    }
    places = next;
  }
  return places;
}

/// The same as a kernel finds them, with units of an element.
std::vector<std::int64_t> places_of(DeviceRows rows, const TensorView& tensor) {
  use_units(rows, dtype_bytes(tensor.dtype));
  const auto element = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  std::vector<std::int64_t> places;
  for (std::int64_t row = 0; row < tensor.shape[0]; ++row) {
    for (std::int32_t unit = 0; unit < rows.row_units; ++unit) {
      const std::int32_t head = unit / rows.head_units;
      places.push_back(row * rows.row_stride + head * rows.head_stride +
                       (unit - head * rows.head_units) * element);
    }
  }
  return places;
}

TEST(DeviceRowLayout, NamesTheElementsOfStridedTensors) {
  for (const TensorView& tensor : {
           contiguous_view(nullptr, DType::Float32, {5}),
           contiguous_view(nullptr, DType::BFloat16, {3, 4, 8}),
           strided(DType::BFloat16, {3, 4, 8}, {100, 20, 1}),        // heads with gaps
           strided(DType::BFloat16, {3, 4, 8}, {8, 24, 1}),          // heads first
           strided(DType::Float32, {3, 1, 8}, {8, 999, 1}),          // a stride of no meaning
           strided(DType::Float64, {2, 6}, {1, 2}),                  // columns
           strided(DType::Float16, {2, 3, 2, 4}, {100, 16, 8, 1}),   // two axes, one step
           strided(DType::Float16, {2, 3, 1, 4}, {100, 16, 77, 1}),  // an axis of one
           contiguous_view(nullptr, DType::Float32, {0, 4, 8}),
       }) {
    const auto rows = comm::tensor_rows({&tensor, 1});
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].data, tensor.data);
    EXPECT_EQ(places_of(rows[0], tensor), places_of(tensor));
  }
}

TEST(DeviceRowLayout, RefusesSeveralAxesWithGaps) {
  const TensorView tensor = strided(DType::Float16, {2, 3, 2, 4}, {60, 20, 8, 1});
  EXPECT_THROW(comm::tensor_rows({&tensor, 1}), InvalidArgument);
}

TEST(DeviceRowLayout, FindsTheLargestCommonUnit) {
  const auto unit_of = [](std::uintptr_t address, std::int64_t row_stride) {
    const DeviceRows rows{.data = reinterpret_cast<std::byte*>(address),
                          .row_stride = row_stride,
                          .head_stride = 256,
                          .row_units = 512,
                          .head_units = 128};
    return comm::common_unit({&rows, 1}, {});
  };
  EXPECT_EQ(unit_of(4096, 1024), 16);
  EXPECT_EQ(unit_of(4096 + 8, 1024), 8);
  EXPECT_EQ(unit_of(4096, 1024 + 4), 4);
  EXPECT_EQ(unit_of(4096 + 8, 1024 + 2), 2);
  EXPECT_EQ(comm::common_unit({}, {}), comm::kLargestUnit);
}

}  // namespace
}  // namespace magi::testing
