// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/schedule/host/query_run.hpp"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/seen_tile.cuh"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/sm90/backward/step_mask.cuh"
#include "kernels/sm90/global_memory.cuh"
#include "kernels/tile/descriptor.cuh"

// Three threads do the work of BackwardProducer: a step of 64 keys without dQ is so short that one
// thread would be late. One walks items and publishes steps, the others load their rows.
namespace magi::sm90 {

/// The one thread that takes items, publishes items and steps, and loads K and V. An item is a k
/// tile and kv head with all head groups: group after group, record after record, q tiles from the
/// last to the first.
template <BackwardConfig kC>
class OwnRowsWalker {
 public:
  __device__ __forceinline__ OwnRowsWalker(BackwardStorage<kC>& shared,
                                           const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    // The kernel that computes dq starts on each multiprocessor that this one leaves. All CTAs of
    // this kernel have waited for the data that it reads.
    if (params_.completion.is_next_beside) ptx::launch_dependents();
    const std::int32_t num_items = params_.items.outcome == nullptr
                                       ? params_.items.num_items
                                       : __ldg(&params_.items.outcome->num_items);
    while (true) {
      const auto ticket = static_cast<std::int32_t>(atomicAdd(params_.items.ticket, 1u));
      if (ticket >= num_items) break;
      walk_item(ticket);
    }
    next_step().flags = kEndOfSteps;
    send_step();
    present_item().flags = kEndOfItems;
    send_item(false);
  }

 private:
  /// Steps that are published before the wait for the buffers of K and V, which the item before
  /// still uses: the rows of these steps load meanwhile.
  static constexpr std::uint32_t kEarlySteps = 4;
  static_assert(kEarlySteps <= kC.q_stages && kEarlySteps <= kC.dout_stages);

  /// The info of the present item. It became free when V of the item before was loaded: by then the
  /// gradients of the item before that had been written.
  __device__ __forceinline__ ItemInfo& present_item() const {
    return shared_.items[num_items_ & 1];
  }

  __device__ __forceinline__ void walk_item(std::int32_t index) {
    const std::int32_t kv_head = index / params_.items.num_tiles;
    const std::int32_t k_tile = index - kv_head * params_.items.num_tiles;
    // A KeyTile in one load: key_begin, key_end, record_begin, record_end.
    const int4 tile = __ldg(reinterpret_cast<const int4*>(
        params_.items.tiles + (kv_head * params_.items.tiles_per_list + k_tile)));
    const bool has_steps = tile.z < tile.w;
    ItemInfo& item = present_item();
    item.flags = kFirstSplit | kLastSplit | (has_steps ? kHasSteps : 0);
    item.key_begin = tile.x;
    item.num_keys = tile.y - tile.x;
    item.kv_head = kv_head;
    if (!has_steps) return send_item(false);
    num_early_ = kEarlySteps;
    ProducerState& at = shared_.producer;
    const std::int32_t first = kv_head * params_.items.records_per_list;
    at.record_begin = first + tile.z;
    at.record_end = first + tile.w;
    at.groups_per_item = params_.items.spans[0].groups_per_item;
    at.group_begin = kv_head * at.groups_per_item;
    for (at.index = 0; at.index < at.groups_per_item; ++at.index) {
      for (at.record = at.record_begin; at.record < at.record_end; ++at.record) walk_record(tile.x);
    }
    if (num_early_ > 0) send_item(true);
    // One such step for each warpgroup: the item has no more steps for it.
    for (int i = 0; i < kC.consumers; ++i) {
      next_step().flags = kNoRows;
      send_step();
    }
  }

  /// The present record. NOTE: its values are in shared memory, as the thread has 24 registers.
  __device__ __forceinline__ BandSlice present_band() const {
    return load_band(params_.items.records + shared_.producer.record);
  }

  __device__ __forceinline__ void walk_record(std::int32_t key_begin) {
    constexpr int kAhead = 8;  // records; memory after the last ones holds the lists of tiles
    ProducerState& at = shared_.producer;
    ptx::prefetch_l1(params_.items.records + at.record + kAhead);
    const QueryRun run =
        query_run(present_band(), key_begin, kC.tile_keys(), params_.query.token_shift);
    at.tile_begin = run.tile_begin;
    at.full_begin = run.full_begin;
    at.full_end = run.full_end;
    for (std::int32_t tile = run.tile_end - 1; tile >= at.tile_begin; --tile) {
      const bool is_masked = tile < at.full_begin || tile >= at.full_end;
      StepInfo& step = next_step();
      step.flags = is_masked ? kMasked : 0;
      step.group = at.group_begin + at.index;
      step.q_tile = tile;
      if (is_masked) {
        set_mask(step, mask_of(present_band(), key_begin), tile << params_.query.token_shift);
      }
      send_step();
      if (num_early_ > 0 && --num_early_ == 0) send_item(true);
    }
  }

  /// Waits until the next step's info is free, and returns it. Loaders are at most q_stages ahead
  /// of consumers: once they have loaded step n, consumers have finished step n - q_stages.
  __device__ __forceinline__ StepInfo& next_step() const {
    constexpr std::uint32_t kBehind = kC.step_stages() - kC.q_stages;
    if (num_steps_ >= kBehind) {
      shared_.step_loaded.wait(RingPlace<kC.step_stages()>(num_steps_ - kBehind));
    }
    return shared_.steps[RingPlace<kC.step_stages()>(num_steps_).stage()];
  }
  __device__ __forceinline__ void send_step() {
    ptx::mbarrier_arrive(shared_.step_full.at(RingPlace<kC.step_stages()>(num_steps_)));
    ++num_steps_;
  }

  /// Publishes the present item's info, and loads its K and V if `has_tiles`.
  __device__ __forceinline__ void send_item(bool has_tiles) {
    const RingPlace<1> place(num_items_);
    const ItemInfo& item = present_item();
    const ptx::BoxOrigin box{0, item.kv_head, item.key_begin};
    shared_.k_ring.wait_empty(place);
    ptx::Mbarrier& k_full = shared_.k_ring.full.at(place);
    ptx::mbarrier_arrive_expect(k_full, has_tiles ? kC.k_bytes() : 0);
    if (has_tiles) load_panels<kC.keys, kC.dim_qk>(shared_.k, params_.k, box, k_full);
    shared_.v_ring.wait_empty(place);
    ptx::Mbarrier& v_full = shared_.v_ring.full.at(place);
    ptx::mbarrier_arrive_expect(v_full, has_tiles ? kC.v_bytes() : 0);
    if (has_tiles) load_values(box, v_full);
    ++num_items_;
  }

  /// Loads V, with zeros for unseen keys, whose dK could be NaN. Unseen rows of K reach dQ alone.
  __device__ __forceinline__ void load_values(const ptx::BoxOrigin& box,
                                              ptx::Mbarrier& full) const {
    const SeenTiles& seen = params_.seen;
    if (seen.keys == nullptr)
      return load_panels<kC.keys, kC.dim_v>(shared_.v, params_.v, box, full);
    load_seen_panels<kC.keys, kC.dim_v>(shared_.cut, shared_.v, seen.v,
                                        seen.keys + std::int64_t{box.head} * seen.words_per_list, 0,
                                        box, full);
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  std::uint32_t num_steps_ = 0;
  std::uint32_t num_items_ = 0;
  std::uint32_t num_early_ = 0;  ///< steps still to publish before the item and its K and V
};

/// One of the two threads that load the rows of published steps: Q with lse_log2, or dO with delta.
template <BackwardConfig kC, bool kIsQuery>
class StepLoader {
 public:
  __device__ __forceinline__ StepLoader(BackwardStorage<kC>& shared, const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() const {
    for (std::uint32_t step = 0;; ++step) {
      const RingPlace<kC.step_stages()> place(step);
      shared_.step_full.wait(place);
      const StepInfo& info = shared_.steps[place.stage()];
      const std::int32_t flags = info.flags;
      if ((flags & kEndOfSteps) != 0) return;
      if constexpr (kIsQuery) {
        load<kC.dim_qk>(RingPlace<kC.q_stages>(step), shared_.q_ring, info);
      } else {
        load<kC.dim_v>(RingPlace<kC.dout_stages>(step), shared_.dout_ring, info);
      }
      ptx::mbarrier_arrive(shared_.step_loaded.at(place));
    }
  }

 private:
  static constexpr int kVectorBytes = kC.rows * 4;

  template <int kDim, int kStages>
  __device__ __forceinline__ void load(RingPlace<kStages> place, Ring<kStages>& ring,
                                       const StepInfo& info) const {
    ptx::Mbarrier& full = ring.full.at(place);
    ring.wait_empty(place);
    if ((info.flags & kNoRows) != 0) return ptx::mbarrier_arrive(full);
    ptx::mbarrier_arrive_expect(full, kC.rows * kDim * 2 + kVectorBytes);
    const std::int32_t group = info.group;
    const std::int32_t tile = info.q_tile;
    const ptx::BoxOrigin box{0, group << params_.query.packed_shift,
                             tile << params_.query.token_shift};
    const std::int64_t row = (std::int64_t{group} * params_.query.num_q_tiles + tile) * kC.rows;
    const std::uint32_t stage = place.stage();
    if constexpr (kIsQuery) {
      load_panels<kC.rows, kDim>(shared_.q[stage], params_.q, box, full);
      ptx::load_bytes(shared_.lse_log2[stage], params_.softmax.lse_log2 + row, kVectorBytes, full);
    } else {
      load_panels<kC.rows, kDim>(shared_.dout[stage], params_.dout, box, full);
      ptx::load_bytes(shared_.delta[stage], params_.softmax.delta + row, kVectorBytes, full);
    }
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
};

}  // namespace magi::sm90
