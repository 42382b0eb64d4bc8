// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace magi {

/// Device memory for use in the order of a stream (a cudaStream_t): allocate gives memory that work
/// enqueued later on `stream` may use, null where none is left; release takes it back for work
/// enqueued later still.
struct DeviceAllocator {
  std::function<void*(std::size_t size_bytes, std::int32_t device, void* stream)> allocate;
  std::function<void(void* data, std::size_t size_bytes, std::int32_t device, void* stream)>
      release;
};

}  // namespace magi
