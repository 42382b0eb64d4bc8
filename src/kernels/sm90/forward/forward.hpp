// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/memory.hpp"
#include "kernels/sm90/forward/launch.hpp"
#include "magi/attention_cuda.hpp"

namespace magi {

/// A host list and its device copy.
struct ForwardWork::State {
  const sm90::ForwardInstance* instance = nullptr;
  const sm90::ForwardInstance* softcap_instance = nullptr;  ///< of the same tile shape
  std::int32_t device = 0;
  std::int32_t num_ctas = 0;
  ForwardList list;  ///< without its vectors' contents once they are on the device
  std::int32_t num_tiles = 0;
  DeviceBuffer tiles;
  DeviceBuffer records;
  DeviceBuffer ticket;
};

namespace sm90 {

/// The list as `instance` tiles it, on the current device.
ForwardWork::State make_work(const ForwardInstance& instance, const ForwardProblem& problem,
                             std::span<const BandSlice> slices, const ForwardTuning& tuning);

/// attention_forward_cuda without the checks.
void enqueue_forward(const ForwardArgs& args, const ForwardWork::State& work, cudaStream_t stream);

}  // namespace sm90
}  // namespace magi
