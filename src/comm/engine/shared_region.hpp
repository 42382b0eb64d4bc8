// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "base/file_descriptor.hpp"

namespace magi::comm {

/// Anonymous memory (memfd, mode 0600) that the ranks of one machine map. It has no name, so there
/// is nothing to unlink, and it is gone with the last process that holds it. Offsets are pages.
class SharedRegion {
 public:
  /// Throws CommError(System) when the machine refuses the memory.
  static std::shared_ptr<SharedRegion> create(std::size_t num_bytes);
  /// The region that process `pid` of the same user holds as `fd`.
  static std::shared_ptr<SharedRegion> open(pid_t pid, int fd);

  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  ~SharedRegion();

  int fd() const { return fd_.get(); }
  std::size_t file_bytes() const;

  /// Gives [offset, offset + num_bytes) memory; false when the machine has none. Reserving before
  /// mapping turns lack of memory into an answer instead of SIGBUS.
  bool reserve(std::size_t offset, std::size_t num_bytes) noexcept;
  /// Maps an extent; a second user of the same extent in this process shares the mapping.
  std::byte* map(std::size_t offset, std::size_t num_bytes);
  /// Ends one use of a mapped extent.
  void unmap(std::size_t offset) noexcept;
  /// Returns an extent's memory to the machine; what was there reads as zero.
  void discard(std::size_t offset, std::size_t num_bytes) noexcept;

 private:
  explicit SharedRegion(int fd) : fd_(fd) {}

  struct Extent {
    std::byte* data = nullptr;
    std::size_t num_bytes = 0;
    int users = 0;
  };
  FileDescriptor fd_;
  std::mutex mutex_;
  std::map<std::size_t, Extent> extents_;
};

std::size_t page_bytes();

}  // namespace magi::comm
