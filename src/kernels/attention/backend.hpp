// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/schedule/host/in_flight_keys.hpp"
#include "magi/attention_cuda.hpp"
#include "magi/attention_limits.hpp"

// What stands between a plan (or one call on one device) and the kernels that compute attention. A
// backend is asked for its limits, prepares a problem once and runs it any number of times. The
// public calls and work types come in here too: checked tensors, slices and tunings go in, kernels
// are run or enqueued.
//
//   backend_table, built_in        which backends there are, and which one serves a device
//   limits, checks, arrivals       what a backend takes; what a problem and a call may be
//   cpu_backend, kernel_backends   the library's own; device_runs has what those of GPUs share
//   supplied_*, combine            those of others, and what the library does around them
//   work, device_slices, device_key_lists, device_block_mask
//                                  public calls on a GPU: slices of the host; slices, lists of
//                                  keys and masks of blocks in device memory
namespace magi {

/// The choices for a problem, where a backend has such choices; see ForwardWork, BackwardWork.
struct ForwardTiling {
  std::int32_t packed_heads = 0;
  std::int32_t num_pieces = 0;
};
struct BackwardTiling {
  std::int32_t packed_heads = 0;
  std::int32_t heads_per_item = 0;
};

/// The forward of one problem: shapes, types and slices are fixed, tensors and parameters are given
/// to every run. Runs may overlap, from any threads and on any streams, with a workspace each.
class PreparedForward {
 public:
  virtual ~PreparedForward() = default;

  /// Bytes held between runs on the device of the problem, such as schedules.
  virtual std::int64_t size_bytes() const = 0;
  /// Bytes of workspace that a run needs.
  virtual std::int64_t workspace_bytes() const = 0;
  virtual ForwardTiling tiling() const { return {}; }
  /// Computes `args`, whose slices are not read. On a GPU the work is enqueued on `stream` (a
  /// cudaStream_t; host tensors ignore it) and may be captured in a graph, which then keeps this
  /// object. A workspace without data lets the run take its own from the library's pool or from the
  /// heap. Throws InvalidArgument naming the tensor that does not fit.
  virtual void run(const ForwardArgs& args, const DeviceWorkspace& workspace,
                   void* stream) const = 0;
  /// Begins a run while keys come, on a GPU, of what prepare_in_flight_forward gave: K and V may be
  /// written until `arrivals` tell that they are there. This object outlives the run. (run() wants
  /// all keys to be there.)
  virtual std::unique_ptr<InFlightForward> begin_in_flight(const ForwardArgs& args,
                                                           const DeviceWorkspace& workspace,
                                                           const KeyArrivals& arrivals,
                                                           void* stream) const;
};

/// The backward of one problem; all as for the forward. The type of dout is fixed as well.
class PreparedBackward {
 public:
  virtual ~PreparedBackward() = default;

  virtual std::int64_t size_bytes() const = 0;
  virtual std::int64_t workspace_bytes() const = 0;
  virtual BackwardTiling tiling() const { return {}; }
  virtual void run(const BackwardArgs& args, const DeviceWorkspace& workspace,
                   void* stream) const = 0;
  /// Gradients of parts may have places of their own, unless keys' gradients are added to what is
  /// there.
  virtual std::unique_ptr<InFlightBackward> begin_in_flight(const BackwardArgs& args,
                                                            const DeviceWorkspace& workspace,
                                                            const BackwardArrivals& arrivals,
                                                            void* stream) const;
};

/// One way to compute attention. Immutable; what it prepared may outlive it.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  /// Unique among the backends of the process, such as "cpu" or "sm90".
  virtual const std::string& name() const = 0;
  /// The limits of the forward. A backward that takes less names what it refuses.
  virtual const AttentionLimits& limits() const = 0;
  /// Whether the backend computes on tensors of `device` (a CUDA ordinal or kCpuDevice).
  virtual bool serves(std::int32_t device) const = 0;

  /// Prepares for the shapes, types, device and slices of `args`; its data may be null, slices are
  /// copied. Blocks. Throws InvalidArgument naming what is not allowed.
  virtual std::shared_ptr<const PreparedForward> prepare_forward(
      const ForwardArgs& args, const ForwardTuning& tuning) const = 0;
  /// Likewise; of the gradients only dout is read, for its type.
  virtual std::shared_ptr<const PreparedBackward> prepare_backward(
      const BackwardArgs& args, const BackwardTuning& tuning) const = 0;

  /// Whether the next two may be called. Where not, all keys are awaited before a run.
  virtual bool takes_in_flight_keys() const { return false; }
  /// Does the above, with a schedule for keys that come in the course of a run. Throws
  /// InvalidArgument naming what is not allowed of `coming`.
  virtual std::shared_ptr<const PreparedForward> prepare_in_flight_forward(
      const ForwardArgs& args, const ForwardTuning& tuning, const InFlightKeys& coming) const;
  virtual std::shared_ptr<const PreparedBackward> prepare_in_flight_backward(
      const BackwardArgs& args, const BackwardTuning& tuning, const InFlightKeys& coming) const;
};

/// The backend of this name, or with an empty name the library's own for `device`. Throws
/// InvalidArgument naming a device without one, an unknown name, or a backend that does not serve
/// the device.
std::shared_ptr<const AttentionBackend> find_backend(const std::string& name, std::int32_t device);

/// Adds the backend that make() gives to the process. Throws InvalidArgument, before it calls
/// make(), for a name that is empty or taken.
void add_backend(const std::string& name,
                 const std::function<std::shared_ptr<const AttentionBackend>()>& make);
/// Takes it out again; whoever found it before may use it on. Throws InvalidArgument for an unknown
/// name and for the library's own.
void remove_backend(const std::string& name);
/// Names of all backends, the library's own first.
std::vector<std::string> backend_names();

}  // namespace magi
