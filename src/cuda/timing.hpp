// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"

namespace magi {

/// A point in a stream's work, with its time.
class Event {
 public:
  Event() { cuda_check(cudaEventCreate(&handle_), "cudaEventCreate"); }
  ~Event() { cuda_forget(cudaEventDestroy(handle_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) const {
    cuda_check(cudaEventRecord(handle_, stream), "cudaEventRecord");
  }
  /// Blocks until both events have happened.
  double seconds_since_sync(const Event& earlier) const {
    cuda_check(cudaEventSynchronize(handle_), "cudaEventSynchronize");
    float milliseconds = 0.0f;
    cuda_check(cudaEventElapsedTime(&milliseconds, earlier.handle_, handle_),
               "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t handle_ = nullptr;
};

}  // namespace magi
