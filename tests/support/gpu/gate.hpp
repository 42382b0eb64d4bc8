// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "cuda/check.hpp"

namespace magi::test {

/// Holds a stream until it is opened, or for ten seconds. The stream is done before it ends.
struct Gate {
  explicit Gate(cudaStream_t stream) {
    cuda_check(cudaLaunchHostFunc(stream, wait, this), "cudaLaunchHostFunc");
  }
  std::atomic<bool> is_open = false;
  std::atomic<bool> has_given_up = false;

 private:
  static void wait(void* self) {
    auto& gate = *static_cast<Gate*>(self);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!gate.is_open.load() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    gate.has_given_up = !gate.is_open.load();
  }
};

}  // namespace magi::test
