// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <optional>

#include "cuda/pool.hpp"
#include "cuda/stream_buffer.hpp"
#include "cuda/stream_counters.hpp"
#include "kernels/attention/backend.hpp"
#include "kernels/attention/checks.hpp"

// What runs on GPUs have in common whatever the architecture: checks, the current device, memory,
// captures. An architecture supplies enqueue.
namespace magi {

class DeviceForward : public PreparedForward, public std::enable_shared_from_this<DeviceForward> {
 public:
  void run(const ForwardArgs& args, const DeviceWorkspace& workspace, void* stream) const final;
  std::unique_ptr<InFlightForward> begin_in_flight(const ForwardArgs& args,
                                                   const DeviceWorkspace& workspace,
                                                   const KeyArrivals& arrivals,
                                                   void* stream) const final;

 protected:
  /// Prepares on the current device, which is that of `args`. `limits` outlive the object.
  /// `coming`: what it is prepared for, or null.
  DeviceForward(const AttentionLimits& limits, const ForwardArgs& args, const InFlightKeys* coming);

  virtual void enqueue(const ForwardArgs& args, const RunMemory& memory,
                       cudaStream_t stream) const = 0;
  virtual std::unique_ptr<InFlightForward> begin(const ForwardArgs& args, RunMemory memory,
                                                 const KeyArrivals& arrivals,
                                                 cudaStream_t stream) const = 0;

 private:
  struct GraphPart;
  /// Takes the memory of a run on the current device, or from the caller.
  RunMemory take_memory(const ForwardArgs& args, const DeviceWorkspace& workspace,
                        cudaStream_t stream) const;

  PoolLease lease_;  ///< first: ends when the rest has been given back
  const AttentionLimits& limits_;
  AttentionProblem problem_;
  std::optional<std::int32_t> own_rows_;      ///< of the in-flight keys that it is prepared for
  std::shared_ptr<StreamCounters> counters_;  ///< of all work on the device
};

class DeviceBackward : public PreparedBackward,
                       public std::enable_shared_from_this<DeviceBackward> {
 public:
  void run(const BackwardArgs& args, const DeviceWorkspace& workspace, void* stream) const final;
  std::unique_ptr<InFlightBackward> begin_in_flight(const BackwardArgs& args,
                                                    const DeviceWorkspace& workspace,
                                                    const BackwardArrivals& arrivals,
                                                    void* stream) const final;

 protected:
  DeviceBackward(const AttentionLimits& limits, const BackwardArgs& args,
                 const InFlightKeys* coming);
  virtual void enqueue(const BackwardArgs& args, const RunMemory& memory,
                       cudaStream_t stream) const = 0;
  virtual std::unique_ptr<InFlightBackward> begin(const BackwardArgs& args, RunMemory memory,
                                                  const BackwardArrivals& arrivals,
                                                  cudaStream_t stream) const = 0;

 private:
  RunMemory take_memory(const DeviceWorkspace& workspace, cudaStream_t stream) const;

  PoolLease lease_;
  const AttentionLimits& limits_;
  AttentionProblem problem_;
  std::optional<std::size_t> num_parts_;  ///< of the in-flight keys that it is prepared for
};

}  // namespace magi
