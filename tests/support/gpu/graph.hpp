// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/stream.hpp"

namespace magi::test {

/// A graph of what `enqueue` gives a stream, ready to run.
class Graph {
 public:
  template <typename Enqueue>
  Graph(cudaStream_t stream, const Enqueue& enqueue,
        cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamBeginCapture(stream, mode), "cudaStreamBeginCapture");
    try {
      enqueue();
    } catch (...) {
      // Calls of other ranks' threads may have ended the capture already.
      if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) cudaGraphDestroy(graph);
      static_cast<void>(cudaGetLastError());
      throw;
    }
    cuda_check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cuda_check(cudaGraphInstantiate(&runnable_, graph, 0), "cudaGraphInstantiate");
    cuda_check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  ~Graph() { static_cast<void>(cudaGraphExecDestroy(runnable_)); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const {
    cuda_check(cudaGraphLaunch(runnable_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t runnable_ = nullptr;
};

}  // namespace magi::test
