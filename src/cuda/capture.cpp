// SPDX-License-Identifier: Apache-2.0
#include "cuda/capture.hpp"

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "cuda/check.hpp"

namespace magi {
namespace {

using Kept = std::shared_ptr<const void>;

std::atomic<int> num_dropping = 0;

/// The driver calls this where CUDA calls are forbidden, and dropping the last owner may free
/// device memory.
void drop_elsewhere(void* kept) noexcept {
  ++num_dropping;
  try {
    std::thread([kept] {
      delete static_cast<Kept*>(kept);
      --num_dropping;
    }).detach();
  } catch (const std::exception&) {
    --num_dropping;  // no thread to be had: rather lost than freed
  }
}

/// A process that ends takes CUDA from under threads that still free memory.
void await_drops() noexcept {
  constexpr int kMostMs = 5000;
  for (int ms = 0; ms < kMostMs && num_dropping > 0; ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

cudaGraph_t graph_of_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  cuda_check(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, nullptr, nullptr, nullptr),
             "cudaStreamGetCaptureInfo");
  return status == cudaStreamCaptureStatusActive ? graph : nullptr;
}

void keep_with_graph(cudaGraph_t graph, std::shared_ptr<const void> object) {
  // CUDA is in use, so at the end of the process this runs before what ends CUDA.
  [[maybe_unused]] static const int is_registered = std::atexit(await_drops);
  auto kept = std::make_unique<Kept>(std::move(object));
  cudaUserObject_t handle = nullptr;
  cuda_check(
      cudaUserObjectCreate(&handle, kept.get(), drop_elsewhere, 1, cudaUserObjectNoDestructorSync),
      "cudaUserObjectCreate");
  static_cast<void>(kept.release());
  const cudaError_t status = cudaGraphRetainUserObject(graph, handle, 1, cudaGraphUserObjectMove);
  if (status != cudaSuccess) cuda_forget(cudaUserObjectRelease(handle, 1));
  cuda_check(status, "cudaGraphRetainUserObject");
}

UncapturedScope::UncapturedScope() noexcept {
  cuda_forget(cudaThreadExchangeStreamCaptureMode(&mode_));
}

UncapturedScope::~UncapturedScope() { cuda_forget(cudaThreadExchangeStreamCaptureMode(&mode_)); }

}  // namespace magi
