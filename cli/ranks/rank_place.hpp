// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include "magi/tensor.hpp"

namespace magi::cli {

/// The memory that a rank's tensors lie in, the host's or a GPU's, and the clock of work on them.
struct RankPlace {
  std::string name;  ///< of the device
  std::int32_t device = kCpuDevice;
  void* stream = nullptr;  ///< that work is enqueued on
  /// Memory with small random values of any floating-point type.
  std::function<std::shared_ptr<void>(std::int64_t size_bytes)> allocate;
  /// Copies bytes between memory of this place and the host's, either way.
  std::function<void(void* to, const void* from, std::int64_t size_bytes)> copy_sync;
  /// Seconds that `work` takes: on a GPU of the stream, however slowly the host enqueues it.
  std::function<double(const std::function<void()>& work)> time_sync;
};

/// The host's memory.
RankPlace host_place();
/// Runs `body` with the memory of a GPU and a stream of its own. Throws InvalidArgument where the
/// build has no CUDA.
void on_gpu(std::int32_t device, const std::function<void(const RankPlace&)>& body);

/// A row-major tensor and its memory.
struct PlacedTensor {
  PlacedTensor(const RankPlace& place, DType dtype, std::initializer_list<std::int64_t> shape);
  std::int64_t size_bytes() const;

  TensorView view;
  std::shared_ptr<void> memory;
};

}  // namespace magi::cli
