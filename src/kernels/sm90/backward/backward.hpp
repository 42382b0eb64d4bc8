// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/memory.hpp"
#include "cuda/stream_buffer.hpp"
#include "kernels/schedule/device/device_backward_list.hpp"
#include "kernels/sm90/backward/launch.hpp"
#include "kernels/sm90/backward/prepare.hpp"
#include "magi/attention_cuda.hpp"

// The backward on Hopper behind src/kernels/attention, which has checked the arguments and made the
// device current.
namespace magi::sm90 {

/// The contents of a list in device memory.
struct BackwardListOnDevice {
  const KeyTile* tiles = nullptr;
  const KeyRecord* records = nullptr;
  const SemaphoreRun* semaphore_runs = nullptr;
  const std::int32_t* tile_components = nullptr;
  const TileSemaphores* tile_semaphores = nullptr;  ///< null: of several lists
  std::int32_t num_left = 0;                        ///< see BackwardList::left_tiles
  const std::int32_t* left_tiles = nullptr;
  const TileArrival* arrivals = nullptr;     ///< [k tiles], where keys come
  const BackwardOutcome* outcome = nullptr;  ///< of a list made on the device, like `order`
  const std::int32_t* order = nullptr;       ///< see BackwardItems
  /// The outcome of the launch for lists whose sums have no order; null: there is no such launch.
  const BackwardOutcome* unordered = nullptr;
  unsigned* unordered_ticket = nullptr;
  const std::int32_t* converted_tiles = nullptr;  ///< see DqOutput
  const std::uint32_t* seen_queries = nullptr;    ///< see SeenTiles
  const std::uint32_t* seen_keys = nullptr;
  std::int32_t tiles_per_list = 0;  ///< likewise; then `outcome` has one for each kv head
  std::int32_t records_per_list = 0;
  /// Whether kernels make it right in front of this call's first, which then runs beside them. Not
  /// where a run of the same call is in front, whose memory this one takes.
  bool is_under_way = false;
};

/// A host list and its device copy, or the frame of a list made on the device.
struct BackwardState {
  const BackwardInstance* instance = nullptr;
  const BackwardInstance* softcap_instance = nullptr;
  DType dout_type = DType::BFloat16;
  std::int32_t num_ctas = 0;
  /// Once it is on the device, without its records and what says where they add.
  BackwardList list;
  BackwardListOnDevice parts;
  std::vector<DeviceList> lists;  ///< that hold the parts; none of a list made on the device

  std::int64_t size_bytes() const;
};

/// The places where the parts of a workspace begin, in bytes.
struct BackwardLayout {
  std::size_t semaphores = 0;
  std::size_t lse_log2 = 0;
  std::size_t delta = 0;
  std::size_t dq_sums = 0;
  std::size_t split_sums = 0;
  std::size_t dout_copy = 0;
  std::size_t destinations = 0;
  std::size_t size_bytes = 0;
};
BackwardLayout backward_layout(const BackwardState& state);

/// The list for the problem of `args`, on the current device, for one of `instances`, which are
/// ordered by rising dims.
BackwardState make_backward(std::span<const BackwardInstance> instances, const BackwardArgs& args,
                            const BackwardTuning& tuning, const InFlightKeys& coming);

/// Enqueues a run whose keys are all there; `workspace` is as long as the layout says.
void enqueue_backward(const BackwardArgs& args, const BackwardState& state, void* workspace,
                      cudaStream_t stream);

/// One run in parts, on the device that is current as it begins. The state outlives it, like a
/// workspace that it does not own.
class BackwardRun final : public InFlightBackward {
 public:
  BackwardRun(const BackwardArgs& args, const BackwardState& state, RunMemory memory,
              const BackwardArrivals& arrivals, cudaStream_t stream);
  BackwardRun(const BackwardRun&) = delete;
  BackwardRun& operator=(const BackwardRun&) = delete;

  AddressTable places() const override;
  void prepare() override;
  void attend() override;
  void finish() override;

 private:
  bool has_flags() const { return keys_.flags != nullptr; }
  /// Whether tiles wait for keys by themselves, and leave over work whose keys are late.
  bool has_waiting_tiles() const { return has_flags() && state_.list.awaits_keys(); }
  /// Brings where the gradients of keys go to the device: with the preprocess kernel, or where they
  /// are too many for its arguments by kernels of their own.
  void keep_destinations(std::span<const PartGradients> gradients);

  BackwardArgs args_;
  const BackwardState& state_;
  RunMemory memory_;
  KeyArrivals keys_;
  std::int32_t device_;
  cudaStream_t stream_;
  BackwardParams params_;
  PrepareParams prepared_;
  KeyDestination* destinations_ = nullptr;
};

/// The results that the first kernel of a run leaves for those behind it.
struct PreparedRows {
  PackedRows packed;
  const float* lse_log2 = nullptr;
  const float* delta = nullptr;
  TensorView dout;  ///< of 16-bit elements
};
PreparedRows prepared_rows(const BackwardArgs& args, const BackwardState& state, void* workspace);

/// Enqueues a run but for dq: what makes it comes next, also where the main kernel makes no sums
/// of it (BackwardConfig::makes_dq).
BackwardParams enqueue_main(const BackwardArgs& args, const BackwardState& state, void* workspace,
                            cudaStream_t stream);

/// A call whose slices are in device memory.
struct DeviceBackwardCall {
  BackwardState state;
  DeviceBackwardShape shape;
  DeviceBackwardLayout layout;  ///< of the list, which begins the workspace
  std::int64_t workspace_bytes = 0;
};
/// `has_clusters`: see DeviceListShape.
DeviceBackwardCall device_backward_call(std::span<const BackwardInstance> instances,
                                        bool has_clusters, const BackwardArgs& args,
                                        std::int64_t num_slices,
                                        const DeviceBackwardTuning& tuning);
void enqueue_backward(const BackwardArgs& args, const DeviceBackwardCall& call,
                      const SliceArrays& slices, void* workspace, cudaStream_t stream);

/// The steps that make_backward and device_backward_call share.
BackwardProblem backward_problem(const BackwardArgs& args, std::int32_t num_ctas,
                                 const InFlightKeys& coming);
/// The state for tensors like those of `args`, without a list.
BackwardState backward_state(std::span<const BackwardInstance> instances, const BackwardArgs& args);
BackwardTileShape tile_shape(const BackwardConfig& config);
/// CTAs, or clusters of them, that take items of the main kernel.
std::int32_t count_walkers(const BackwardState& state, std::int32_t device, std::int32_t sm_margin);

}  // namespace magi::sm90
