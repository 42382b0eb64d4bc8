// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/order.cuh"
#include "kernels/schedule/host/item_order.hpp"
#include "kernels/schedule/host/query_run.hpp"
#include "kernels/sm90/backward/config.hpp"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/sm90/global_memory.cuh"

namespace magi::mma {

using sm90::BackwardConfig;
using sm90::BackwardParams;

enum StepFlag : std::int32_t {
  kIsMasked = 1,
  kIsEnd = 2,         ///< there is no step any more
  kIsFirstOfSum = 4,  ///< the sum of dQ begins with the step
};

/// A step: a q tile of a head group against the item's keys.
struct Step {
  std::int32_t flags = 0;
  std::int32_t group = 0;
  std::int32_t q_tile = 0;
  std::int32_t value = 0;      ///< of the semaphore, when the step may add its dQ
  std::int64_t semaphore = 0;  ///< index of DqOrder::semaphores
  BandSlice band;              ///< the mask, where one is needed
};

/// The part of a walk that changes with each step; one load.
struct alignas(16) StepCursor {
  std::int32_t tile;   ///< q tile
  std::int32_t index;  ///< of the head group in the item
  std::int32_t tile_begin;
  std::int32_t groups_per_item;
};
/// The other numbers that make a step; one load.
struct alignas(16) StepBounds {
  std::int32_t full_begin;
  std::int32_t full_end;
  std::int32_t group_begin;
  std::int32_t record;
};

/// The place of a CTA in its walk; in shared memory, as one thread needs it.
struct StepState {
  StepCursor cursor;
  StepBounds bounds;
  BandSlice band;
  std::int32_t k_tile;
  std::int32_t record_begin;
  std::int32_t record_end;
  std::int32_t run;           ///< of the record's semaphore runs
  std::int32_t run_begin;     ///< its first q tile
  std::int32_t run_value;     ///< its value
  std::int32_t component;     ///< of the record
  std::int32_t value_tile;    ///< q tile of the last value looked up, and
  std::int32_t value_record;  ///< its record
};

/// Takes items and walks their steps when the CTA asks for the next one: record after record, q
/// tiles from the last to the first, the head groups of each; or so in one round for each head
/// group. One thread does so.
template <BackwardConfig kC>
class StepWalk {
 public:
  __device__ __forceinline__ StepWalk(StepState& state, const BackwardParams& params)
      : at_(state), params_(params) {}

  /// Fills in the next item and its first step. NOTE: an item is taken only when the one before has
  /// ended: a semaphore waits for a lower item, so the lowest unfinished one must never be kept.
  __device__ __forceinline__ void take_item(sm90::ItemInfo& item, Step& step) const {
    const auto ticket = static_cast<std::int32_t>(atomicAdd(params_.items.ticket, 1u));
    if (ticket >= num_items()) {
      item.flags = sm90::kEndOfItems;
      return;
    }
    const std::int32_t* order = params_.items.order;
    find_place(item, static_cast<std::uint32_t>(order == nullptr ? ticket : __ldg(order + ticket)));
    // A KeyTile in one load: key_begin, key_end, record_begin, record_end.
    const int4 tile = __ldg(reinterpret_cast<const int4*>(params_.items.tiles + at_.k_tile));
    item.key_begin = tile.x;
    item.num_keys = tile.y - tile.x;
    at_.record_begin = at_.bounds.record = tile.z;
    at_.record_end = tile.w;
    at_.cursor.index = 0;
    at_.value_record = -1;
    if (tile.z >= tile.w) return;
    item.flags |= sm90::kHasSteps;
    StepCursor cursor = at_.cursor;
    StepBounds bounds = at_.bounds;
    start_record(cursor, bounds, item.key_begin);
    at_.bounds = bounds;
    fill(step, cursor, bounds);
  }

  /// Fills in the item's next step, or says that there is none.
  __device__ __forceinline__ void next(Step& step, std::int32_t key_begin) const {
    StepCursor cursor = at_.cursor;
    StepBounds bounds = at_.bounds;
    if (!advance(cursor, bounds, key_begin)) {
      step.flags = kIsEnd;
      return;
    }
    fill(step, cursor, bounds);
  }

 private:
  __device__ __forceinline__ std::int32_t num_items() const {
    const sm90::BackwardItems& items = params_.items;
    return items.outcome == nullptr ? items.num_items : __ldg(&items.outcome->num_items);
  }

  __device__ __forceinline__ void find_place(sm90::ItemInfo& item, std::uint32_t index) const {
    const BackwardItem place = backward_item(params_.items.spans, params_.items.heads_kv, index);
    const TileSpan& span = params_.items.spans[place.span];
    const SlotUser user{place.tile, place.kv_head};
    at_.k_tile = place.tile;
    at_.cursor.groups_per_item = span.groups_per_item;
    at_.bounds.group_begin = (place.kv_head * span.num_splits + place.split) * span.groups_per_item;
    item.kv_head = place.kv_head;
    item.flags = (place.split == 0 ? sm90::kFirstSplit : 0) |
                 (place.split + 1 == span.num_splits ? sm90::kLastSplit : 0);
    item.semaphore = semaphore_of(user);
    if (span.num_splits == 1) return;
    item.slot = slot_of(span, user);
    item.awaited_semaphore =
        place.split > 0 ? item.semaphore : semaphore_of(user_before(span, user));
    item.awaited_value = place.split > 0 ? place.split : span.num_splits;
  }
  __device__ __forceinline__ std::int32_t semaphore_of(SlotUser user) const {
    return user.tile < 0 ? -1 : 2 * (user.kv_head * params_.items.num_tiles + user.tile);
  }

  /// Begins at the record's last q tile.
  __device__ __forceinline__ void start_record(StepCursor& cursor, StepBounds& bounds,
                                               std::int32_t key_begin) const {
    at_.band = sm90::load_band(params_.items.records + bounds.record);
    const QueryRun run = query_run(at_.band, key_begin, kC.keys, params_.query.token_shift);
    cursor.tile = run.tile_end - 1;
    cursor.tile_begin = run.tile_begin;
    bounds.full_begin = run.full_begin;
    bounds.full_end = run.full_end;
  }

  /// Goes on to the next step. Returns false after the last one.
  __device__ __forceinline__ bool advance(StepCursor& cursor, StepBounds& bounds,
                                          std::int32_t key_begin) const {
    const bool is_group_first = params_.items.is_group_first;
    if (!is_group_first) {
      if (++cursor.index < cursor.groups_per_item) return true;
      cursor.index = 0;
    }
    if (--cursor.tile >= cursor.tile_begin) return true;
    if (++bounds.record == at_.record_end) {
      if (!is_group_first || ++cursor.index == cursor.groups_per_item) return false;
      bounds.record = at_.record_begin;
    }
    start_record(cursor, bounds, key_begin);
    at_.bounds = bounds;
    return true;
  }

  __device__ __forceinline__ void fill(Step& step, const StepCursor& cursor,
                                       const StepBounds& bounds) const {
    at_.cursor = cursor;
    const bool is_masked = cursor.tile < bounds.full_begin || cursor.tile >= bounds.full_end;
    step.flags = is_masked ? kIsMasked : 0;
    step.group = bounds.group_begin + cursor.index;
    step.q_tile = cursor.tile;
    if (is_masked) step.band = at_.band;
    if (params_.dq_order.is_ordered) find_value(step, bounds.record);
  }

  /// Finds the semaphore value at which the step may add; see "Ordered sums of dQ" in
  /// docs/kernels/backward.md.
  __device__ __forceinline__ void find_value(Step& step, std::int32_t record) const {
    const sm90::DqOrder& order = params_.dq_order;
    const std::int32_t tile = step.q_tile;
    if (record != at_.value_record || tile > at_.value_tile) {
      // A record's q tiles come from the last to the first, and so do its runs.
      at_.value_record = record;
      at_.run = __ldg(&params_.items.records[record].run_end) - 1;
      load_run();
    }
    at_.value_tile = tile;
    while (at_.run_begin > tile) {
      --at_.run;
      load_run();
    }
    step.value = at_.run_value;
    step.semaphore = std::int64_t{step.group} * order.num_semaphores + tile + at_.component;
    const bool is_alone = __ldg(order.num_components + tile) == 1;
    if (is_alone && at_.run_value == 0) step.flags |= kIsFirstOfSum;
  }
  __device__ __forceinline__ void load_run() const {
    // A SemaphoreRun in one load: q_tile, value, component, is_last.
    const int4 run = __ldg(reinterpret_cast<const int4*>(params_.dq_order.runs + at_.run));
    at_.run_begin = run.x;
    at_.run_value = run.y;
    at_.component = run.z;
  }

  StepState& at_;
  const BackwardParams& params_;
};

}  // namespace magi::mma
