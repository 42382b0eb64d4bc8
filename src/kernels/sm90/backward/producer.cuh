// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/tile/descriptor.cuh"
#include "kernels/worklist/item_order.hpp"
#include "kernels/worklist/query_run.hpp"

namespace magi::sm90 {

/// The one thread that takes items, walks their records, tells the other roles of items and steps,
/// and loads. Record after record, q tiles from the last to the first, the head groups of each; or
/// so in one round for each head group.
template <BackwardConfig kC>
class BackwardProducer {
 public:
  __device__ __forceinline__ BackwardProducer(BackwardStorage<kC>& shared,
                                              const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    shared_.producer.span = 0;
    for (std::int32_t item = take_ticket(); item < params_.num_items; item = take_ticket()) {
      run_item(item);
    }
    shared_.steps[num_steps_ % kInfoStages].flags = kEndOfSteps;
    ptx::mbarrier_arrive(shared_.step_full[num_steps_ % kInfoStages]);
    present_item().flags = kEndOfItems;
    send_item(false);
  }

 private:
  static constexpr int kVectorBytes = kC.rows * 4;

  /// NOTE: an item is taken only when the one before has been walked, and the first like any other:
  /// whoever waits for a turn waits for a lower item, so the lowest unfinished item must never be
  /// one that a CTA keeps for later or that a CTA not yet resident would start with.
  __device__ __forceinline__ std::int32_t take_ticket() const {
    return static_cast<std::int32_t>(atomicAdd(params_.ticket, 1u));
  }

  /// Free since V of the item before was loaded: the one before that had been written by then.
  __device__ __forceinline__ ItemInfo& present_item() const {
    return shared_.items[num_items_ & 1];
  }

  /// Where the item works, and what it needs to know of its split.
  __device__ __forceinline__ void find_place(std::uint32_t index) const {
    ProducerState& at = shared_.producer;
    ItemInfo& info = present_item();
    const BackwardItem item = backward_item(params_.spans, params_.heads_kv, index, at.span);
    const TileSpan& span = params_.spans[item.span];
    at.span = item.span;
    at.k_tile = item.tile;
    at.groups_per_item = span.groups_per_item;
    at.group_begin = (item.kv_head * span.num_splits + item.split) * span.groups_per_item;
    at.is_sent = false;
    info.kv_head = item.kv_head;
    info.flags =
        (item.split == 0 ? kFirstPiece : 0) | (item.split + 1 == span.num_splits ? kLastPiece : 0);
    info.counter = counter_of({item.tile, item.kv_head});
    if (span.num_splits > 1) {
      const SlotUser user{item.tile, item.kv_head};
      info.slot = slot_of(span, user);
      info.awaited = item.split > 0 ? info.counter : counter_of(user_before(span, user));
      info.num_awaited = item.split > 0 ? item.split : span.num_splits;
    }
  }

  /// The first warpgroup's counter of the splits of a k tile and kv head; -1: nobody's.
  __device__ __forceinline__ std::int32_t counter_of(SlotUser user) const {
    return user.tile < 0 ? -1 : 2 * (user.kv_head * params_.num_tiles + user.tile);
  }

  __device__ __forceinline__ void run_item(std::int32_t index) {
    find_place(static_cast<std::uint32_t>(index));
    ProducerState& at = shared_.producer;
    const int4 work = __ldg(reinterpret_cast<const int4*>(params_.tiles + at.k_tile));
    ItemInfo& item = present_item();
    item.key_begin = work.x;
    item.num_keys = work.y - work.x;
    at.record_end = work.w;
    if (work.z >= work.w) {
      send_item(false);
      return;
    }
    item.flags |= kHasSteps;
    at.index = 0;
    do {
      for (at.record = work.z; at.record < at.record_end; ++at.record) {
        run_record(start_record(item));
      }
    } while (params_.is_group_first && ++at.index < at.groups_per_item);
  }

  __device__ __forceinline__ BandSlice load_band(std::int32_t index) const {
    const auto* source = reinterpret_cast<const int4*>(params_.records + index);
    const int4 first = __ldg(source);
    const int4 second = __ldg(source + 1);
    return {first.x, first.y, first.z, first.w, second.x, second.y};
  }

  /// The end of the record's q tiles.
  __device__ __forceinline__ std::int32_t start_record(const ItemInfo& item) const {
    ProducerState& at = shared_.producer;
    const BandSlice band = load_band(at.record);
    at.mask = {.key_low = band.k0 - item.key_begin,
               .key_high = band.k1 - item.key_begin,
               .q_low = band.q0,
               .q_high = band.q1,
               .low = item.key_begin - band.d_max,
               .high = item.key_begin - band.d_min + 1};
    const QueryRun run = query_run(band, item.key_begin, kC.keys, params_.token_shift);
    at.tile_begin = run.tile_begin;
    at.full_begin = run.full_begin;
    at.full_end = run.full_end;
    at.is_last = at.record + 1 == at.record_end;
    return run.tile_end;
  }

  __device__ __forceinline__ void run_record(std::int32_t tile) {
    while (--tile >= shared_.producer.tile_begin) {
      std::int32_t& index = shared_.producer.index;
      if (!params_.is_group_first) index = 0;
      do {
        run_step(tile);
      } while (!params_.is_group_first && ++index < shared_.producer.groups_per_item);
    }
  }

  __device__ __forceinline__ void run_step(std::int32_t tile) {
    ptx::mbarrier_wait(shared_.q_empty[ring_stage<kC.q_stages>(num_steps_)],
                       ring_parity<kC.q_stages>(num_steps_) ^ 1);
    tell_step(tile);
    load_queries(tile);
    load_dout(tile);
    ++num_steps_;
    if (!shared_.producer.is_sent) send_item(true);
    shared_.producer.is_sent = true;
  }

  __device__ __forceinline__ void tell_step(std::int32_t tile) const {
    ProducerState& at = shared_.producer;
    StepInfo& step = shared_.steps[num_steps_ % kInfoStages];
    const bool is_masked = tile < at.full_begin || tile >= at.full_end;
    const bool is_last = at.is_last && at.index + 1 == at.groups_per_item && tile == at.tile_begin;
    step.flags = (is_masked ? kMasked : 0) | (is_last ? kLastStep : 0);
    at.group = at.group_begin + at.index;
    step.sum = at.group * params_.num_q_tiles + tile;
    step.group = at.group;
    step.q_tile = tile;
    step.record = at.record;
    if (is_masked) tell_mask(step, tile << params_.token_shift);
    ptx::mbarrier_arrive(shared_.step_full[num_steps_ % kInfoStages]);
  }

  /// Exact wherever it can decide anything, and small enough to be multiplied by packed heads.
  __device__ __forceinline__ static std::int32_t clamped(std::int32_t value) {
    constexpr std::int32_t kFar = 1 << 20;
    return min(max(value, -kFar), kFar);
  }

  __device__ __forceinline__ void tell_mask(StepInfo& step, std::int32_t token) const {
    step.key_low = shared_.producer.mask.key_low;
    step.key_high = shared_.producer.mask.key_high;
    step.q_low = clamped(shared_.producer.mask.q_low - token);
    step.q_high = clamped(shared_.producer.mask.q_high - token);
    step.low = clamped(shared_.producer.mask.low - token);
    step.high = clamped(shared_.producer.mask.high - token);
  }

  __device__ __forceinline__ ptx::BoxOrigin box_of(std::int32_t tile) const {
    return {0, shared_.producer.group << params_.packed_shift, tile << params_.token_shift};
  }
  /// Of levels and offsets: the first row of the q tile.
  __device__ __forceinline__ std::int64_t row_of(std::int32_t tile) const {
    const std::int32_t sum = shared_.producer.group * params_.num_q_tiles + tile;
    return std::int64_t{sum} * kC.rows;
  }

  __device__ __forceinline__ void load_queries(std::int32_t tile) const {
    const int stage = ring_stage<kC.q_stages>(num_steps_);
    ptx::Mbarrier& full = shared_.q_full[stage];
    ptx::mbarrier_arrive_expect(full, kC.q_bytes() + kVectorBytes);
    load_rows<kC.rows, kC.dim_qk>(shared_.q[stage], params_.q, box_of(tile), full);
    ptx::load_bytes(shared_.levels[stage], params_.levels + row_of(tile), kVectorBytes, full);
  }

  __device__ __forceinline__ void load_dout(std::int32_t tile) const {
    const int stage = ring_stage<kC.dout_stages>(num_steps_);
    ptx::mbarrier_wait(shared_.dout_empty[stage], ring_parity<kC.dout_stages>(num_steps_) ^ 1);
    ptx::Mbarrier& full = shared_.dout_full[stage];
    ptx::mbarrier_arrive_expect(full, kC.dout_bytes() + kVectorBytes);
    load_rows<kC.rows, kC.dim_v>(shared_.dout[stage], params_.dout, box_of(tile), full);
    ptx::load_bytes(shared_.offsets[stage], params_.offsets + row_of(tile), kVectorBytes, full);
  }

  /// The present item's info, with its K and V or without.
  __device__ __forceinline__ void send_item(bool has_tiles) {
    const std::uint32_t parity = num_items_ & 1;
    const ItemInfo& item = present_item();
    const ptx::BoxOrigin box{0, item.kv_head, item.key_begin};
    ptx::mbarrier_wait(shared_.k_empty, parity ^ 1);
    ptx::mbarrier_arrive_expect(shared_.k_full, has_tiles ? kC.k_bytes() : 0);
    if (has_tiles) load_rows<kC.keys, kC.dim_qk>(shared_.k, params_.k, box, shared_.k_full);
    ptx::mbarrier_wait(shared_.v_empty, parity ^ 1);
    ptx::mbarrier_arrive_expect(shared_.v_full, has_tiles ? kC.v_bytes() : 0);
    if (has_tiles) load_rows<kC.keys, kC.dim_v>(shared_.v, params_.v, box, shared_.v_full);
    ++num_items_;
  }

  template <int kRows, int kDim>
  __device__ __forceinline__ static void load_rows(std::uint8_t* tile, const CUtensorMap& map,
                                                   ptx::BoxOrigin box, ptx::Mbarrier& barrier) {
#pragma unroll
    for (int panel = 0; panel < kDim / tile::kPanelElements; ++panel) {
      box.dim = panel * tile::kPanelElements;
      ptx::load_box(tile + panel * kRows * tile::kPanelRowBytes, map, box, barrier);
    }
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  std::uint32_t num_steps_ = 0;
  std::uint32_t num_items_ = 0;
};

}  // namespace magi::sm90
