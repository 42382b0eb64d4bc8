// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "base/file_descriptor.hpp"

namespace magi::comm {

/// A process as it names itself to others. Process numbers are reused; with the start time, in
/// clock ticks since boot, they are not.
struct ProcessId {
  std::int64_t pid = 0;
  std::int64_t start_ticks = 0;
};
ProcessId own_process();

/// Tells whether other processes have ended; zombies have. Uses pidfds, or /proc where the machine
/// has none.
class ProcessWatch {
 public:
  explicit ProcessWatch(const std::vector<ProcessId>& processes);
  bool has_ended(std::size_t idx) const;

 private:
  struct Watched {
    ProcessId id;
    FileDescriptor pidfd;
  };
  std::vector<Watched> watched_;
};

}  // namespace magi::comm
