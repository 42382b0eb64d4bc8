// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/memory.hpp"
#include "cuda/stream_counters.hpp"
#include "kernels/sm90/forward/launch.hpp"
#include "magi/attention_cuda.hpp"

namespace magi {

/// A host list and its device copy.
struct ForwardWork::State {
  const sm90::ForwardInstance* instance = nullptr;
  const sm90::ForwardInstance* general_instance = nullptr;  ///< of the same q tiles
  std::int32_t device = 0;
  std::int32_t num_ctas = 0;
  ForwardList list;  ///< without its vectors' contents once they are on the device
  DeviceBuffer tiles;
  DeviceBuffer records;
  std::unique_ptr<StreamCounters> tickets;
};

namespace sm90 {

/// The contents of a list in device memory; see ForwardParams.
struct ListOnDevice {
  const TileWork* tiles = nullptr;
  const BandRecord* records = nullptr;
  unsigned* ticket = nullptr;
  const std::int32_t* chosen_heads = nullptr;
};

/// The kernels for the same tensors; their q tiles are the same.
struct InstancePair {
  const ForwardInstance* plain = nullptr;
  const ForwardInstance* general = nullptr;
};

/// What a list depends on; throws InvalidArgument naming the tensor.
ForwardProblem forward_problem(const ForwardArgs& args);
/// Throws InvalidArgument naming what a call on `device` does not allow.
void check_forward_call(const ForwardArgs& args, std::int32_t device);
InstancePair find_instances(const ForwardArgs& args);
TileShape tile_shape(const ForwardInstance& instance);
/// Whether a call needs the general kernel.
bool is_general_call(const ForwardArgs& args);
/// CTAs of a launch; throws InvalidArgument naming sm_margin or the number of items.
std::int32_t count_ctas(std::int32_t device, const ForwardTuning& tuning, std::int64_t num_items);
/// Sets max_logits to -infinity where the call has them and does not merge.
void fill_max_logits(const ForwardArgs& args, cudaStream_t stream);

/// One launch over a list; `list` needs no contents.
void launch_list(const ForwardArgs& args, const ForwardList& list, const ListOnDevice& parts,
                 const ForwardInstance& instance, std::int32_t num_ctas, cudaStream_t stream);

/// The list as `instance` tiles it, on the current device.
ForwardWork::State make_work(const ForwardInstance& instance, const ForwardProblem& problem,
                             std::span<const BandSlice> slices, const ForwardTuning& tuning);

/// attention_forward_cuda without the checks, not for a capture.
void enqueue_forward(const ForwardArgs& args, const ForwardWork::State& work, cudaStream_t stream);

}  // namespace sm90
}  // namespace magi
