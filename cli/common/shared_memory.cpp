// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory.hpp"

#include <sys/mman.h>

#include <string>

#include "common/files.hpp"

namespace magi::cli {

SharedMemory::SharedMemory(std::size_t size_bytes) : size_bytes_(size_bytes) {
  void* memory =
      ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw EnvironmentUnfit("no " + std::to_string(size_bytes_) + " bytes of shared memory");
  }
  data_ = static_cast<std::byte*>(memory);
}

SharedMemory::~SharedMemory() { ::munmap(data_, size_bytes_); }

}  // namespace magi::cli
