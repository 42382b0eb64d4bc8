// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "cuda/memory.hpp"
#include "cuda/stream_counters.hpp"
#include "kernels/sm90/forward/launch.hpp"
#include "kernels/worklist/split_rule.hpp"
#include "magi/attention_cuda.hpp"

namespace magi {

namespace sm90 {

/// The kernels for the same tensors; their q tiles are the same.
struct InstanceSet {
  std::array<const ForwardInstance*, 3> by_features{};

  const ForwardInstance* of(FeatureSet features) const {
    return by_features[static_cast<std::size_t>(features)];
  }
};

}  // namespace sm90

/// A host list and its device copy.
struct ForwardWork::State {
  sm90::InstanceSet instances;
  std::int32_t device = 0;
  std::int32_t num_ctas = 0;
  ForwardList list;  ///< without its vectors' contents once they are on the device
  std::int32_t num_splits = 0;
  std::int32_t num_slots = 0;
  DeviceBuffer tiles;
  DeviceBuffer records;
  DeviceBuffer splits;
  std::unique_ptr<StreamCounters> tickets;
};

namespace sm90 {

/// The contents of a list in device memory; see ForwardParams.
struct ListOnDevice {
  const TileWork* tiles = nullptr;
  const BandRecord* records = nullptr;
  unsigned* ticket = nullptr;
  const ListOutcome* outcome = nullptr;
  const SplitTile* splits = nullptr;
  WantedList wanted = WantedList::Any;
  PartialRows partial;  ///< room for the results of all pieces
};

/// What a list depends on; throws InvalidArgument naming the tensor.
ForwardProblem forward_problem(const ForwardArgs& args);
/// Throws InvalidArgument naming what a call on `device` does not allow.
void check_forward_call(const ForwardArgs& args, std::int32_t device);
InstanceSet find_instances(const ForwardArgs& args);
TileShape tile_shape(const ForwardInstance& instance);
/// The smallest feature set that serves a call.
FeatureSet feature_set_of(const ForwardArgs& args);
/// CTAs of a launch; throws InvalidArgument naming sm_margin or the number of items.
std::int32_t count_ctas(std::int32_t device, const ForwardTuning& tuning, std::int64_t num_items);
/// For the device's free SMs; throws InvalidArgument naming what is not allowed.
SplitRule split_rule(std::int32_t device, const ForwardTuning& tuning);
/// Bytes of the partial rows of `num_partials` items, and where their parts lie.
std::size_t partial_bytes(const TileShape& shape, const ForwardArgs& args,
                          std::int64_t num_partials);
PartialRows partial_rows(const TileShape& shape, const ForwardArgs& args, void* data,
                         std::int64_t num_partials);
/// Sets max_logits to -infinity where the call has them and does not merge.
void fill_max_logits(const ForwardArgs& args, cudaStream_t stream);

/// One launch over a list; `list` needs no contents.
void launch_list(const ForwardArgs& args, const ForwardList& list, const ListOnDevice& parts,
                 const ForwardInstance& instance, std::int32_t num_ctas, cudaStream_t stream);

/// Merges the pieces of a list into lse and out. `num_splits`: at most, where the device knows.
void launch_combine(const ForwardArgs& args, const ForwardList& list, const ListOnDevice& parts,
                    std::int32_t num_splits, cudaStream_t stream);

/// The list as `instances` tile it, on the current device.
ForwardWork::State make_work(const InstanceSet& instances, const ForwardProblem& problem,
                             std::span<const BandSlice> slices, const ForwardTuning& tuning);

/// attention_forward_cuda without the checks, not for a capture.
void enqueue_forward(const ForwardArgs& args, const ForwardWork::State& work, cudaStream_t stream);

}  // namespace sm90
}  // namespace magi
