// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace magi::comm {

/// A point in a stream's work.
class StreamMark {
 public:
  virtual ~StreamMark() = default;
  /// Whether the work before it has ended. Throws CudaError where the device failed.
  virtual bool is_reached() const = 0;
};

/// The calls that a transport makes to CUDA beside the calls of its own library.
class CommDevice {
 public:
  virtual ~CommDevice() = default;
  virtual std::int32_t ordinal() const = 0;
  /// Names the device among all of a machine's, whatever the process numbers them.
  virtual std::string id() const = 0;
  /// Runs the calls with the device current.
  virtual void run(const std::function<void()>& calls) const = 0;
  /// The same on a thread that watches others: captures of theirs are not disturbed.
  virtual void run_watch(const std::function<void()>& calls) const = 0;
  /// Marks the end of what the stream was given, a cudaStream_t of the current device. Null during
  /// a capture: nobody can tell when a graph's run comes to it.
  virtual std::unique_ptr<StreamMark> mark(void* stream) const = 0;
};

/// Throws InvalidArgument where there is no such device, or the build has no CUDA.
std::shared_ptr<const CommDevice> make_comm_device(std::int32_t device);

}  // namespace magi::comm
