// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "cuda/check.hpp"

namespace magi::bench {

/// Of the values, of which there is at least one; the upper one of the two in the middle.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Median microseconds of 51 replays, after five others, of a graph of what `enqueue` enqueues.
inline double time_graph(const std::function<void(cudaStream_t)>& enqueue) {
  constexpr int kRepeats = 51;
  constexpr int kWarmUps = 5;
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t graph_exec = nullptr;
  cudaEvent_t events[2] = {};
  cuda_check(cudaStreamCreate(&stream), "cudaStreamCreate");
  for (cudaEvent_t& event : events) cuda_check(cudaEventCreate(&event), "cudaEventCreate");
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
  enqueue(stream);
  cuda_check(cudaStreamEndCapture(stream, &graph), "end capture");
  cuda_check(cudaGraphInstantiate(&graph_exec, graph, 0), "cudaGraphInstantiate");
  std::vector<double> times;
  for (int i = 0; i < kRepeats + kWarmUps; ++i) {
    cuda_check(cudaEventRecord(events[0], stream), "cudaEventRecord");
    cuda_check(cudaGraphLaunch(graph_exec, stream), "cudaGraphLaunch");
    cuda_check(cudaEventRecord(events[1], stream), "cudaEventRecord");
    cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    float ms = 0.0f;
    cuda_check(cudaEventElapsedTime(&ms, events[0], events[1]), "cudaEventElapsedTime");
    if (i >= kWarmUps) times.push_back(1e3 * ms);
  }
  for (cudaEvent_t event : events) cuda_check(cudaEventDestroy(event), "cudaEventDestroy");
  cuda_check(cudaGraphExecDestroy(graph_exec), "cudaGraphExecDestroy");
  cuda_check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  cuda_check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return median(times);
}

}  // namespace magi::bench
