// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <optional>

#include "cuda/check.hpp"

namespace magi {

/// A point in one stream's work that other streams wait for; takes no time stamp. Of the device
/// that was current when it was made.
class OrderEvent {
 public:
  OrderEvent() {
    cuda_check(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming),
               "cudaEventCreateWithFlags");
  }
  ~OrderEvent() { cuda_forget(cudaEventDestroy(handle_)); }
  OrderEvent(const OrderEvent&) = delete;
  OrderEvent& operator=(const OrderEvent&) = delete;

  void record(cudaStream_t stream) const {
    cuda_check(cudaEventRecord(handle_, stream), "cudaEventRecord");
  }
  /// Work that `stream` is given later waits for the point last recorded.
  void await(cudaStream_t stream) const {
    cuda_check(cudaStreamWaitEvent(stream, handle_, 0), "cudaStreamWaitEvent");
  }
  /// Whether the point last recorded has been reached.
  bool is_reached() const {
    const cudaError_t status = cudaEventQuery(handle_);
    if (status == cudaErrorNotReady) return false;
    cuda_check(status, "cudaEventQuery");
    return true;
  }

 private:
  cudaEvent_t handle_ = nullptr;
};

/// Puts calls of any streams one after the other. Those of one stream are in order anyway: its
/// number, which no later stream is given, tells.
class CallOrder {
 public:
  /// Work that `stream` is given later comes after the call that ended last.
  void begin(cudaStream_t stream) const {
    if (last_stream_ && *last_stream_ != number_of(stream)) end_.await(stream);
  }
  void end(cudaStream_t stream) {
    end_.record(stream);
    last_stream_ = number_of(stream);
  }

 private:
  static unsigned long long number_of(cudaStream_t stream) {
    unsigned long long number = 0;
    cuda_check(cudaStreamGetId(stream, &number), "cudaStreamGetId");
    return number;
  }

  OrderEvent end_;
  std::optional<unsigned long long> last_stream_;  ///< of the call that ended last
};

}  // namespace magi
