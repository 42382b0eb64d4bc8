// SPDX-License-Identifier: Apache-2.0
#include "cuda/timing.hpp"

#include "cuda/check.hpp"

namespace magi {

Event::Event() { cuda_check(cudaEventCreate(&handle_), "cudaEventCreate"); }

Event::~Event() { cuda_forget(cudaEventDestroy(handle_)); }

void Event::record(cudaStream_t stream) const {
  cuda_check(cudaEventRecord(handle_, stream), "cudaEventRecord");
}

double Event::seconds_since_sync(const Event& earlier) const {
  cuda_check(cudaEventSynchronize(handle_), "cudaEventSynchronize");
  float milliseconds = 0.0f;
  cuda_check(cudaEventElapsedTime(&milliseconds, earlier.handle_, handle_), "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace magi
