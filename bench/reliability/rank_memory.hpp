// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "magi/tensor.hpp"

namespace magi::reliability {

/// Where a rank's tensors lie, and the stream of its calls.
class RankMemory {
 public:
  virtual ~RankMemory() = default;
  /// Memory with these bytes, as long as the object lives.
  virtual void* take(std::vector<std::byte> bytes) = 0;
  /// The bytes of a tensor without gaps, behind all calls.
  virtual std::vector<std::byte> fetch_sync(const TensorView& tensor) = 0;
  virtual void* stream() { return nullptr; }
};

std::unique_ptr<RankMemory> make_memory(std::int32_t device);
/// Throws InvalidArgument where the build has no CUDA.
std::unique_ptr<RankMemory> make_gpu_memory(std::int32_t device);
/// Bytes of a GPU that nobody holds.
std::size_t free_gpu_bytes(std::int32_t device);

}  // namespace magi::reliability
