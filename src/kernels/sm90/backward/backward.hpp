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

// The backward on Hopper. Its caller has checked the arguments and made the device current.
namespace magi::sm90 {

/// The contents of a list in device memory.
struct BackwardListOnDevice {
  const KeyTile* tiles = nullptr;
  const KeyRecord* records = nullptr;
  const SemaphoreRun* semaphore_runs = nullptr;
  const std::int32_t* tile_components = nullptr;
  const TileSemaphores* tile_semaphores = nullptr;  ///< null if there are several lists
  std::int32_t num_left = 0;                        ///< see BackwardList::left_tiles
  const std::int32_t* left_tiles = nullptr;
  const TileArrival* arrivals = nullptr;     ///< [k tiles], if keys are in flight
  const BackwardOutcome* outcome = nullptr;  ///< set if the device makes the list, like `order`
  const std::int32_t* order = nullptr;       ///< see BackwardItems
  /// The outcome for the launch that runs lists with unordered sums; null: there is no such launch.
  const BackwardOutcome* unordered = nullptr;
  unsigned* unordered_ticket = nullptr;
  const std::int32_t* converted_tiles = nullptr;  ///< see DqOutput
  const std::uint32_t* seen_queries = nullptr;    ///< see SeenTiles
  const std::uint32_t* seen_keys = nullptr;
  std::int32_t tiles_per_list = 0;  ///< likewise; then `outcome` has one for each kv head
  std::int32_t records_per_list = 0;
  /// Whether kernels that make the list come just before this call's first kernel, which then runs
  /// beside them. False if a run of the same call comes before, whose memory this one reuses.
  bool is_under_way = false;
};

/// A host list and its device copy, or the frame of a list made on the device.
struct BackwardState {
  const BackwardInstance* instance = nullptr;
  const BackwardInstance* softcap_instance = nullptr;
  DType dout_type = DType::BFloat16;
  std::int32_t num_ctas = 0;
  /// The list. Once it is on the device, this copy lacks the parts that kernels read.
  BackwardList list;
  BackwardListOnDevice parts;
  std::vector<DeviceList> lists;  ///< the memory of `parts`; empty if the device makes the list

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

/// Makes the list for the problem of `args`, on the current device, for the first of `instances`
/// that fits; these are ordered by rising dims.
BackwardState make_backward(std::span<const BackwardInstance> instances, const BackwardArgs& args,
                            const BackwardTuning& tuning, const InFlightKeys& coming);

/// Enqueues a run whose keys have all arrived; `workspace` has BackwardLayout::size_bytes.
void enqueue_backward(const BackwardArgs& args, const BackwardState& state, void* workspace,
                      cudaStream_t stream);

/// One run in parts, on the device that is current at construction. The state outlives it, and so
/// does a workspace that it does not own.
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
  /// Whether work tiles wait for keys by themselves, and are deferred if these are late.
  bool has_waiting_tiles() const { return has_flags() && state_.list.awaits_keys(); }
  /// Copies the destinations of key gradients to the device: with the preprocess kernel or, if they
  /// are too many for its arguments, by other kernels.
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

/// The results that the preprocess kernel of a run leaves for later kernels.
struct PreparedRows {
  PackedRows packed;
  const float* lse_log2 = nullptr;
  const float* delta = nullptr;
  TensorView dout;  ///< of 16-bit elements
};
PreparedRows prepared_rows(const BackwardArgs& args, const BackwardState& state, void* workspace);

/// Enqueues a run without the kernel that makes dq, which the caller enqueues next. The main kernel
/// may make no dQ sums (BackwardConfig::makes_dq).
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
/// The number of CTAs, or clusters, that take items of the main kernel.
std::int32_t count_walkers(const BackwardState& state, std::int32_t device, std::int32_t sm_margin);

}  // namespace magi::sm90
