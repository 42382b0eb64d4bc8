// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "magi/tensor.hpp"

namespace magi::cli {

/// A row-major tensor that owns its memory.
struct Array {
  TensorView view;
  std::shared_ptr<void> memory;

  operator const TensorView&() const { return view; }
};

/// What a rank computes on: the host's memory, or a GPU, where work is enqueued on the rank's
/// stream.
class RankDevice {
 public:
  virtual ~RankDevice() = default;

  virtual std::string name() const = 0;
  virtual void* stream() const = 0;
  /// The type of q, k and v: float32 or bfloat16.
  virtual DType type() const = 0;

  virtual Array make(DType type, std::initializer_list<std::int64_t> shape) = 0;
  /// These wait for the stream. To and from the host's memory.
  virtual void put_sync(const void* source, void* target, std::size_t size_bytes) = 0;
  virtual void fetch_sync(const void* source, void* target, std::size_t size_bytes) = 0;
  virtual void wait_sync() = 0;
};

/// type: float32 or bfloat16.
std::unique_ptr<RankDevice> make_host_device(DType type = DType::Float32);
/// Its type is bfloat16. Throws InvalidArgument where the build has no CUDA.
std::unique_ptr<RankDevice> make_gpu_device(std::int32_t ordinal);

}  // namespace magi::cli
