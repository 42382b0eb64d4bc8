// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <vector>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "kernels/schedule/host/in_flight_keys.hpp"
#include "magi/tensor.hpp"
#include "mask/random_mask.hpp"

namespace magi::test {

/// The rows of one source and arrival chunk.
struct SendStep {
  std::int32_t source = 0;
  std::int32_t section = 0;
  std::int64_t delay_ns = 0;  ///< since the step before
};

/// In place of other GPUs: brings the in-flight rows of K and V to their place, as often as asked,
/// and raises their flags. K and V are contiguous, of 16-bit elements, and complete at
/// construction.
class KeySender {
 public:
  KeySender(const TensorView& k, const TensorView& v, const InFlightKeys& coming);

  /// Takes all in-flight rows away (they are NaN then) and expects them anew; waits for the device.
  void take_away_sync();
  /// Enqueues the steps, one after the other, as one CTA. At most 1,024 steps for one
  /// take_away_sync().
  void send(std::span<const SendStep> steps, cudaStream_t stream);
  /// Enqueues a wait for all flags, of ten seconds at most.
  void await(cudaStream_t stream) const;

  /// Sends the steps on another stream when what `stream` was given so far is over, and enqueues
  /// the wait on `stream`.
  void send_behind(std::span<const SendStep> steps, const Stream& sending, cudaStream_t stream);

  /// Tells of the flags.
  KeyArrivals arrivals(std::int64_t spin_budget_ns) const;
  /// All steps, in order and without delays.
  std::vector<SendStep> all_steps() const;
  /// All steps, each once, shuffled, with random delays up to this.
  std::vector<SendStep> shuffled_steps(RandomStream& random, std::int64_t max_delay_ns) const;

 private:
  /// A tensor, and what all its rows are when they have come.
  struct Tensor {
    TensorView view;
    DeviceBuffer complete;
  };

  int num_flags() const { return in_flight_.num_sections * in_flight_.num_sources; }

  InFlightKeys in_flight_;
  Tensor tensors_[2];
  DeviceBuffer parts_;
  DeviceBuffer flags_;
  DeviceBuffer expected_;
  DeviceBuffer steps_;
  std::size_t num_sent_ = 0;  ///< steps since rows were taken away
  std::uint64_t round_ = 0;
};

}  // namespace magi::test
