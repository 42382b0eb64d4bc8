// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace magi {

/// A point in a stream's work, with its time.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) const;
  /// Blocks until both events have happened.
  double seconds_since_sync(const Event& earlier) const;

 private:
  cudaEvent_t handle_ = nullptr;
};

}  // namespace magi
