// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>

#include "magi/device_allocator.hpp"
#include "magi/tensor.hpp"

namespace magi::cli {

/// A row-major tensor that owns its memory. On a GPU that goes back in the order of the rank's
/// stream.
struct Array {
  TensorView view;
  std::shared_ptr<void> memory;

  operator const TensorView&() const { return view; }
};

/// What a rank computes on: the host's memory and clock, or those of a GPU, where work is enqueued
/// on the rank's stream.
class RankDevice {
 public:
  virtual ~RankDevice() = default;

  /// CUDA ordinal, or kCpuDevice.
  virtual std::int32_t ordinal() const = 0;
  virtual std::string name() const = 0;
  virtual void* stream() const = 0;
  /// Of q, k and v, and of results but lse that nobody asks for in float32: float32 or bfloat16.
  virtual DType type() const = 0;
  /// Where the library and the baselines take their memory, which is counted. Empty: the library's.
  virtual const DeviceAllocator& allocator() const = 0;

  virtual Array make(DType type, std::initializer_list<std::int64_t> shape) = 0;
  /// About normal values.
  virtual Array make_random(std::initializer_list<std::int64_t> shape, std::uint64_t seed) = 0;
  virtual void copy(const void* source, void* target, std::size_t size_bytes) = 0;
  virtual void clear(const TensorView& target) = 0;
  /// target [rows, heads, dim] = source of the same shape; source is float32.
  virtual void convert(const TensorView& source, const TensorView& target) = 0;
  /// These wait for the stream. To and from the host's memory.
  virtual void put_sync(const void* source, void* target, std::size_t size_bytes) = 0;
  virtual void fetch_sync(const void* source, void* target, std::size_t size_bytes) = 0;
  virtual void wait_sync() = 0;

  /// Seconds from the end of what was enqueued so far to the end of `work`.
  virtual double seconds_of_sync(const std::function<void()>& work) = 0;

  /// Bytes that `make` and the allocator have given out, at most since reset_peak. Absent: they are
  /// not counted.
  virtual std::optional<std::int64_t> used_bytes() const = 0;
  virtual std::optional<std::int64_t> peak_bytes() const = 0;
  virtual void reset_peak() = 0;
  /// Bytes of the device that others hold, such as windows and schedules. Waits for the device.
  virtual std::optional<std::int64_t> outside_bytes_sync() const = 0;
};

/// type: float32 or bfloat16.
std::unique_ptr<RankDevice> make_host_device(DType type = DType::Float32);
/// Its type is bfloat16. Throws InvalidArgument where the build has no CUDA.
std::unique_ptr<RankDevice> make_gpu_device(std::int32_t ordinal);

}  // namespace magi::cli
