// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace magi {

/// Owns a stream that does not wait for the default stream.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t handle() const { return handle_; }
  void wait_sync() const;

 private:
  cudaStream_t handle_ = nullptr;
};

/// A point in a stream's work.
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
