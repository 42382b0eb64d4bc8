// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/memory.hpp"
#include "kernels/sm90/backward/launch.hpp"
#include "magi/attention_cuda.hpp"

// The backward on Hopper behind src/kernels/attention, which has checked the arguments and made the
// device current.
namespace magi::sm90 {

/// A host list and its device copy.
struct BackwardState {
  const BackwardInstance* instance = nullptr;
  const BackwardInstance* softcap_instance = nullptr;
  DType dout_type = DType::BFloat16;
  std::int32_t num_ctas = 0;
  /// Once it is on the device, without records, semaphore runs, components and left tiles.
  BackwardList list;
  DeviceList tiles;
  DeviceList records;
  DeviceList semaphore_runs;
  DeviceList tile_components;
  std::int32_t num_left = 0;  ///< see BackwardList::left_tiles
  DeviceList left_tiles;
  DeviceList arrivals;  ///< [k tiles], where keys come

  std::int64_t size_bytes() const;
};

/// Where the parts of a workspace begin, in bytes.
struct BackwardLayout {
  std::size_t semaphores = 0;
  std::size_t lse_log2 = 0;
  std::size_t delta = 0;
  std::size_t tile_flags = 0;
  std::size_t dq_sums = 0;
  std::size_t split_sums = 0;
  std::size_t dout_copy = 0;
  std::size_t destinations = 0;
  std::size_t size_bytes = 0;
};
BackwardLayout backward_layout(const BackwardState& state);

/// The list for the problem of `args`, on the current device.
BackwardState make_backward(const BackwardArgs& args, const BackwardTuning& tuning,
                            const ComingKeys& coming);

/// Enqueues a run; `workspace` is as long as the layout says. `arrivals`: null where all keys are
/// there.
void enqueue_backward(const BackwardArgs& args, const BackwardState& state, void* workspace,
                      const BackwardArrivals* arrivals, cudaStream_t stream);

}  // namespace magi::sm90
