// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace magi::cli {

/// Memory that processes forked later share with this one, zero at first.
class SharedMemory {
 public:
  /// Throws EnvironmentUnfit where the machine has none left.
  explicit SharedMemory(std::size_t size_bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace magi::cli
