// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/device_rows/device_row_layout.hpp"

namespace magi::comm {

__device__ __forceinline__ std::byte* row_of(const DeviceRows& rows, std::int64_t idx) {
  return rows.data + idx * rows.row_stride;
}

/// Unit `unit` of the row that begins at `row`.
template <typename Unit>
__device__ __forceinline__ Unit* unit_of(const DeviceRows& rows, std::byte* row, int unit) {
  const int head = rows.head_units == rows.row_units ? 0 : unit / rows.head_units;
  const int in_head = unit - head * rows.head_units;
  return reinterpret_cast<Unit*>(row + head * rows.head_stride) + in_head;
}

}  // namespace magi::comm
