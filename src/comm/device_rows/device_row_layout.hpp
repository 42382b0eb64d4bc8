// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/rows/row_layout.hpp"

// How kernels that move rows see tensors, and their rows on the wire.
namespace magi::comm {

inline constexpr std::int64_t kLargestUnit = 16;  ///< bytes that a thread moves at once

/// The rows of one tensor, or its part of the wire's rows; strides in bytes.
struct DeviceRows {
  std::byte* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int32_t row_units = 0;
  std::int32_t head_units = 1;  ///< = row_units where the heads follow each other without a gap
};

/// The rows of tensors, with units of a byte. Throws InvalidArgument for a tensor with more than
/// one strided axis beyond its rows.
std::vector<DeviceRows> tensor_rows(std::span<const TensorView> tensors);

/// The parts of the wire's rows that are those of the tensors, with units of a byte.
std::vector<DeviceRows> wire_rows(std::span<const TensorView> tensors, std::uint64_t wire_types,
                                  std::byte* wire);

/// The largest unit in bytes, 2 to 16, of which everything about the rows is a multiple.
std::int64_t common_unit(std::span<const DeviceRows> first, std::span<const DeviceRows> second);

/// Converts from units of a byte to larger ones.
void use_units(DeviceRows& rows, std::size_t unit_bytes);

}  // namespace magi::comm
