// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"

namespace magi {

/// The stream of a caller who sees no CUDA.
inline cudaStream_t queue_of(void* stream) { return static_cast<cudaStream_t>(stream); }

/// Owns a stream that does not wait for the default stream.
class Stream {
 public:
  Stream() {
    cuda_check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags");
  }
  ~Stream() { cuda_forget(cudaStreamDestroy(handle_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t handle() const { return handle_; }
  void wait_sync() const { cuda_check(cudaStreamSynchronize(handle_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t handle_ = nullptr;
};

}  // namespace magi
