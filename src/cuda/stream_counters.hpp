// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cuda/memory.hpp"

namespace magi {

/// Counters in device memory, of kWords words each, for kernels that find them at 0 and leave them
/// at 0. The kernels of
/// one stream follow each other, so they share one; a captured kernel, whose graph may run on any
/// stream, takes one for itself. Safe from several threads.
class StreamCounters {
 public:
  static constexpr std::size_t kWords = 8;  ///< a memory sector

  /// Makes counters on the current device, as is every later call.
  StreamCounters();
  /// Those of the current device for all whose kernels follow each other on a stream, made for the
  /// first of them.
  static std::shared_ptr<StreamCounters> shared();

  /// The counter of `stream`; allocates only where a stream is new.
  unsigned* of_stream(cudaStream_t stream);
  /// A counter that nobody else is given until it is put back.
  unsigned* take();
  void put_back(unsigned* counter) noexcept;

 private:
  unsigned* take_locked();

  std::mutex mutex_;
  std::vector<DeviceBuffer> chunks_;
  std::vector<unsigned*> free_;
  /// Finds counters by the stream's number, which no later stream is given. Kept for good: a few
  /// bytes each.
  std::unordered_map<unsigned long long, unsigned*> by_stream_;
};

}  // namespace magi
