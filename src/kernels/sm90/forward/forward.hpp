// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "cuda/memory.hpp"
#include "cuda/stream_buffer.hpp"
#include "kernels/schedule/device/device_list.hpp"
#include "kernels/schedule/host/in_flight_keys.hpp"
#include "kernels/sm90/forward/launch.hpp"
#include "magi/attention_cuda.hpp"

// The forward on Hopper behind src/kernels/attention, which has checked the arguments and made the
// device current.
namespace magi::sm90 {

/// The kernels for the same tensors; their q tiles are the same.
struct InstanceSet {
  std::array<const ForwardInstance*, 3> by_features{};

  const ForwardInstance* of(FeatureSet features) const {
    return by_features[static_cast<std::size_t>(features)];
  }
};

/// A host list and its device copy.
struct ForwardState {
  InstanceSet instances;
  std::int32_t num_ctas = 0;
  ForwardList list;  ///< without its vectors' contents once they are on the device
  std::int32_t num_split_tiles = 0;
  std::int32_t num_slots = 0;    ///< splits of all tiles, of one head group
  std::int32_t num_sources = 0;  ///< of in-flight keys
  std::int32_t num_arrival_chunks = 1;
  DeviceList tiles;
  DeviceList records;
  DeviceList splits;

  std::int64_t size_bytes() const;
  /// Splits of tiles, over all head groups.
  std::int64_t num_splits() const { return std::int64_t{num_slots} * list.head_groups; }
  /// Bytes that a run needs for the results of splits and for the items that it leaves over.
  std::int64_t workspace_bytes() const;
};

/// The contents of a list in device memory; see ForwardParams.
struct ListOnDevice {
  const TileWork* tiles = nullptr;
  const BandRecord* records = nullptr;
  unsigned* ticket = nullptr;
  const ListOutcome* outcome = nullptr;
  const SplitTile* splits = nullptr;
  WantedList wanted = WantedList::Any;
  PartialRows partial;  ///< room for the results of all splits
  ArrivalFlags arrivals;
  std::int32_t num_arrival_chunks = 1;
  TensorView own_k, own_v;  ///< without data: all keys are in K and V
  bool is_for_deferred = false;
  /// Whether the kernel right in front brings keys, behind all else: the launch runs beside it.
  bool is_beside = false;
  Deferred deferred;
};

ForwardProblem forward_problem(const ForwardArgs& args);
/// Those of `instances`, which are ordered by rising dims and features, for the tensors of `args`.
InstanceSet find_instances(std::span<const ForwardInstance> instances, const ForwardArgs& args);
TileShape tile_shape(const ForwardInstance& instance);
/// The smallest feature set that serves a call.
FeatureSet feature_set_of(const ForwardArgs& args);
/// CTAs of a launch; throws InvalidArgument naming sm_margin or the number of items.
std::int32_t count_ctas(std::int32_t device, const ForwardTuning& tuning, std::int64_t num_items,
                        std::int32_t ctas_per_sm);
/// Makes a schedule for the device's free SMs; throws InvalidArgument naming what is not allowed.
SplitRule split_rule(std::int32_t device, const ForwardTuning& tuning);
/// Bytes of the partial rows of `num_partials` items, and where their parts lie.
std::int64_t partial_bytes(const TileShape& shape, std::int64_t dim_v, std::int64_t num_partials);
PartialRows partial_rows(const TileShape& shape, std::int64_t dim_v, void* data,
                         std::int64_t num_partials);
/// Sets max_logits to -infinity where the call has them and does not merge.
void fill_max_logits(const ForwardArgs& args, cudaStream_t stream);

/// One launch over a list; `list` needs no contents.
void launch_list(const ForwardArgs& args, const ForwardList& list, const ListOnDevice& parts,
                 const ForwardInstance& instance, std::int32_t num_ctas, cudaStream_t stream);

/// Merges the splits of a list into lse and out. `num_split_tiles`: at most, where the device
/// knows.
void launch_combine(const ForwardArgs& args, const ForwardList& list, const ListOnDevice& parts,
                    std::int32_t num_split_tiles, cudaStream_t stream);

/// The list as `instances` tile it, on the current device. `coming`: keys that come in the course
/// of a run.
ForwardState make_forward(const InstanceSet& instances, const ForwardProblem& problem,
                          std::span<const BandSlice> slices, const ForwardTuning& tuning,
                          const InFlightKeys& coming);

/// The words of a run's counters.
enum CounterWord : std::int32_t { kTicket, kNumDeferred, kNumEnded };

/// One run in parts, on the device that is current as it begins. The state outlives it, like memory
/// that it does not own. `memory` has workspace_bytes() and is not read where q has no rows.
class ForwardRun final : public InFlightForward {
 public:
  ForwardRun(const ForwardArgs& args, const ForwardState& state, RunMemory memory,
             const KeyArrivals& arrivals, cudaStream_t stream);
  /// Takes back what a run that is given up has deferred: nobody works at it, and the next run on
  /// the stream finds the count at 0.
  ~ForwardRun() override;
  ForwardRun(const ForwardRun&) = delete;
  ForwardRun& operator=(const ForwardRun&) = delete;

  void attend() override;
  void finish() override;

 private:
  ForwardArgs args_;
  const ForwardState& state_;
  RunMemory memory_;
  KeyArrivals arrivals_;
  std::int32_t device_;
  cudaStream_t stream_;
  const ForwardInstance* instance_ = nullptr;
  ListOnDevice parts_;
  ForwardParams params_;
  bool may_defer_ = false;
};

/// Enqueues a run whose keys are all there.
void enqueue_forward(const ForwardArgs& args, const ForwardState& state, const RunMemory& memory,
                     cudaStream_t stream);

/// A call whose slices are in device memory.
struct DeviceListCall {
  InstanceSet instances;
  ForwardTuning tuning;
  DeviceListShape shape;
  DeviceListLayout layout;
  std::int64_t workspace_bytes = 0;
};
/// `has_clusters`: see DeviceListShape.
DeviceListCall device_list_call(std::span<const ForwardInstance> instances, bool has_clusters,
                                const ForwardArgs& args, std::int64_t num_slices,
                                const DeviceListTuning& tuning);
void enqueue_forward(const ForwardArgs& args, const DeviceListCall& call, const SliceArrays& slices,
                     void* workspace, cudaStream_t stream);

}  // namespace magi::sm90
