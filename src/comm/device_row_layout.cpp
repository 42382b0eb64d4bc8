// SPDX-License-Identifier: Apache-2.0
#include "comm/device_row_layout.hpp"

#include <numeric>

#include "base/check.hpp"

namespace magi::comm {

std::vector<DeviceRows> tensor_rows(std::span<const TensorView> tensors) {
  const RowLayout layout(tensors);
  std::vector<DeviceRows> list;
  for (const TensorRows& tensor : layout.tensors()) {
    const auto element = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
    const auto& runs = tensor.run_offsets;
    for (std::size_t i = 2; i < runs.size(); ++i) {
      if (runs[i] == static_cast<std::int64_t>(i) * runs[1]) continue;
      throw invalid("tensor.stride", "of several axes with gaps",
                    "one strided axis beyond the rows, on a GPU");
    }
    list.push_back({.data = tensor.data,
                    .row_stride = tensor.row_stride_bytes,
                    .head_stride = runs.size() > 1 ? runs[1] * element : 0,
                    .row_units = static_cast<std::int32_t>(
                        static_cast<std::int64_t>(tensor.num_elements) * element),
                    .head_units = static_cast<std::int32_t>(
                        static_cast<std::int64_t>(tensor.run_elements) * element)});
  }
  return list;
}

std::vector<DeviceRows> wire_rows(std::span<const TensorView> tensors, std::uint64_t wire_types,
                                  std::byte* wire) {
  const auto row_stride = static_cast<std::int64_t>(wire_row_bytes(tensors, wire_types));
  std::vector<DeviceRows> list;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto row_bytes =
        static_cast<std::int32_t>(row_elements(tensors[t]) * dtype_bytes(wire_type(wire_types, t)));
    list.push_back(
        {.data = wire, .row_stride = row_stride, .row_units = row_bytes, .head_units = row_bytes});
    wire += row_bytes;
  }
  return list;
}

std::int64_t common_unit(std::span<const DeviceRows> first, std::span<const DeviceRows> second) {
  std::int64_t unit = kLargestUnit;
  for (const auto& list : {first, second}) {
    for (const DeviceRows& rows : list) {
      unit = std::gcd(unit, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows.data)));
      unit = std::gcd(std::gcd(unit, rows.row_stride), rows.head_stride);
      unit = std::gcd(unit, std::int64_t{rows.head_units});
    }
  }
  return unit;
}

void use_units(DeviceRows& rows, std::size_t unit_bytes) {
  rows.row_units /= static_cast<std::int32_t>(unit_bytes);
  rows.head_units /= static_cast<std::int32_t>(unit_bytes);
}

}  // namespace magi::comm
