// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/sm90/arguments.hpp"
#include "magi/mask.hpp"

// What the kernels read and write in device memory through plain addresses.
namespace magi::sm90 {

/// The place where a row of a head begins.
template <typename Element>
__device__ __forceinline__ Element* row_at(const StridedRows& rows, std::int64_t row,
                                           std::int64_t head) {
  return static_cast<Element*>(rows.data) + row * rows.row_stride + head * rows.head_stride;
}

/// The band that a record of a schedule begins with.
template <typename Record>
__device__ __forceinline__ BandSlice load_band(const Record* record) {
  static_assert(sizeof(Record) == 32 && offsetof(Record, band) == 0);
  const auto* source = reinterpret_cast<const int4*>(record);
  const int4 first = __ldg(source);
  const int4 second = __ldg(source + 1);
  return {first.x, first.y, first.z, first.w, second.x, second.y};
}

}  // namespace magi::sm90
