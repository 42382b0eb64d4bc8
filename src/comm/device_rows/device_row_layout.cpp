// SPDX-License-Identifier: Apache-2.0
#include "comm/device_rows/device_row_layout.hpp"

#include "base/check.hpp"

namespace magi::comm {

namespace {

DeviceRows rows_of(const TensorView& tensor) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  DeviceRows rows{.data = static_cast<std::byte*>(tensor.data)};
  rows.head_units = 0;
  if (tensor.rank == 0) return rows;
  rows.row_stride = tensor.stride[0] * element;
  rows.row_units =
      static_cast<std::int32_t>(static_cast<std::int64_t>(row_elements(tensor)) * element);
  // Inner axes that follow each other without a gap are a head; the others repeat it evenly.
  std::int64_t run = 1, step = 0, count = 1;
  bool is_inner = true;
  for (std::int32_t axis = tensor.rank - 1; axis >= 1; --axis) {
    const std::int64_t shape = tensor.shape[static_cast<std::size_t>(axis)];
    const std::int64_t stride = tensor.stride[static_cast<std::size_t>(axis)];
    is_inner = is_inner && (shape == 1 || stride == run);
    if (is_inner) {
      run *= shape;
    } else if (shape != 1) {
      if (count > 1 && stride != count * step) {
        throw invalid("tensor.stride", "of several axes with gaps",
                      "one strided axis beyond the rows, on a GPU");
      }
      if (count == 1) step = stride;
      count *= shape;
    }
  }
  rows.head_stride = step * element;
  rows.head_units = static_cast<std::int32_t>(run * element);
  return rows;
}

}  // namespace

std::vector<DeviceRows> tensor_rows(std::span<const TensorView> tensors) {
  std::vector<DeviceRows> list;
  list.reserve(tensors.size());
  for (const TensorView& tensor : tensors) list.push_back(rows_of(tensor));
  return list;
}

std::vector<DeviceRows> wire_rows(std::span<const TensorView> tensors, std::uint64_t wire_types,
                                  std::byte* wire) {
  const auto row_stride = static_cast<std::int64_t>(wire_row_bytes(tensors, wire_types));
  std::vector<DeviceRows> list;
  list.reserve(tensors.size());
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
  // The largest power of two that divides all: the lowest bit that one of them has.
  auto bits = static_cast<std::uint64_t>(kLargestUnit);
  for (const auto& list : {first, second}) {
    for (const DeviceRows& rows : list) {
      bits |= reinterpret_cast<std::uintptr_t>(rows.data) |
              static_cast<std::uint64_t>(rows.row_stride | rows.head_stride | rows.head_units);
    }
  }
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

void use_units(DeviceRows& rows, std::size_t unit_bytes) {
  rows.row_units /= static_cast<std::int32_t>(unit_bytes);
  rows.head_units /= static_cast<std::int32_t>(unit_bytes);
}

}  // namespace magi::comm
