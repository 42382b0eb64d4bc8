// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace magi {

/// The graph that `stream` is being captured into; null where it is not.
cudaGraph_t graph_of_capture(cudaStream_t stream);

/// Keeps `object` until the graph and all that was instantiated from it are destroyed. Its
/// destructor then runs on a thread of its own, where it may call CUDA.
void keep_with_graph(cudaGraph_t graph, std::shared_ptr<const void> object);

/// While it lives, the calling thread may allocate and free during a capture on any thread. For
/// calls whose order against the captured work does not matter.
class UncapturedScope {
 public:
  UncapturedScope() noexcept;
  ~UncapturedScope();
  UncapturedScope(const UncapturedScope&) = delete;
  UncapturedScope& operator=(const UncapturedScope&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace magi
