// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <memory>

#include "kernels/attention/backend.hpp"

// The library's own backends: the rows of the table in backend_table.cpp.
namespace magi {

const std::shared_ptr<const AttentionBackend>& cpu_backend();
/// Null where the library is built without CUDA.
const std::shared_ptr<const AttentionBackend>& sm90_backend();

/// Throws InvalidArgument saying why none of them serves `device`.
[[noreturn]] void refuse_device(std::int32_t device);

constexpr std::uint32_t types_of(std::initializer_list<DType> types) {
  std::uint32_t bits = 0;
  for (const DType type : types) bits |= 1U << static_cast<unsigned>(type);
  return bits;
}

}  // namespace magi
