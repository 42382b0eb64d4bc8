// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/memory.hpp"
#include "kernels/sm90/backward/launch.hpp"
#include "magi/attention_cuda.hpp"

namespace magi {

/// A host list and its device copy.
struct BackwardWork::State {
  const sm90::BackwardInstance* instance = nullptr;
  const sm90::BackwardInstance* softcap_instance = nullptr;
  DType dout_type = DType::BFloat16;
  std::int32_t device = 0;
  std::int32_t num_ctas = 0;
  BackwardList
      list;  ///< once it is on the device, without records, semaphore runs, components, left tiles
  DeviceBuffer tiles;
  DeviceBuffer records;
  DeviceBuffer semaphore_runs;
  DeviceBuffer tile_components;
  std::int32_t num_left = 0;  ///< see BackwardList::left_tiles
  DeviceBuffer left_tiles;
};

namespace sm90 {

/// Where the parts of a workspace begin, in bytes.
struct BackwardLayout {
  std::size_t semaphores = 0;
  std::size_t lse_log2 = 0;
  std::size_t delta = 0;
  std::size_t dq_sums = 0;
  std::size_t split_sums = 0;
  std::size_t dout_copy = 0;
  std::size_t size_bytes = 0;
};
BackwardLayout backward_layout(const BackwardWork::State& work);

/// The list as `instance` tiles it, on the current device.
BackwardWork::State make_backward_work(const BackwardInstance& instance, const BackwardArgs& args,
                                       const BackwardTuning& tuning);

/// attention_backward_cuda without the checks.
void enqueue_backward(const BackwardArgs& args, const BackwardWork::State& work, void* workspace,
                      cudaStream_t stream);

}  // namespace sm90
}  // namespace magi
