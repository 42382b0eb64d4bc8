// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/copy.cuh"
#include "kernels/schedule/host/item_order.hpp"
#include "kernels/schedule/host/query_run.hpp"
#include "kernels/sm90/backward/item_arrival.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/seen_tile.cuh"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/sm90/backward/step_mask.cuh"
#include "kernels/sm90/global_memory.cuh"
#include "kernels/tile/descriptor.cuh"

namespace magi::sm90 {

/// The one thread that takes items, walks their records, publishes items and steps to the other
/// roles, and loads. It walks record after record, in each the q tiles from the last to the first,
/// and for each the head groups; or all of this once for each head group. kMayBeCut: tiles may have
/// rows that nobody sees.
template <BackwardConfig kC, bool kMayBeCut>
class BackwardProducer {
 public:
  __device__ __forceinline__ BackwardProducer(BackwardStorage<kC>& shared,
                                              const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    if (params_.completion.is_next_beside) ptx::launch_dependents();
    shared_.producer.span = 0;
    init_arrivals(shared_.arrivals, params_.coming.flags);
    if constexpr (kC.ctas() == 1) {
      if (arrival().has_items()) run_items();
    } else if (ptx::cluster_rank() == 0) {
      if (arrival().has_items()) run_items();
      send_ticket(kNoItem);
    } else {
      run_sent_items();
    }
    // NOTE: not earlier, or the next kernel would wait on multiprocessors that the launch leaves
    // free.
    if (params_.coming.flags.flags == nullptr) ptx::launch_dependents();
    step_info().flags = kEndOfSteps;
    send_step();
    present_item().flags = kEndOfItems;
    send_item(false);
    if constexpr (kMayBeCut) ask(CutRequest::kEnd, 0);
  }

 private:
  static constexpr int kVectorBytes = kC.rows * 4;

  __device__ __forceinline__ ItemArrival<kC> arrival() const {
    return ItemArrival<kC>(shared_, params_.coming);
  }

  __device__ __forceinline__ void run_items() {
    for (std::int32_t item = take_ticket(); item < num_items(); item = take_ticket()) {
      if (arrival().has(item)) run_item(in_order(item));
    }
  }

  /// Reads memory at every call, because registers are few.
  __device__ __forceinline__ std::int32_t num_items() const {
    const BackwardItems& items = params_.items;
    return items.outcome == nullptr ? items.num_items : __ldg(&items.outcome->num_items);
  }
  __device__ __forceinline__ std::int32_t in_order(std::int32_t item) const {
    return params_.items.order == nullptr ? item : __ldg(params_.items.order + item);
  }

  // The first CTA of a k tile takes items, waits for their keys, and sends those that run to the
  // second.
  static constexpr std::int32_t kNoItem = -1;

  __device__ __forceinline__ void send_ticket(std::int32_t item) {
    const RingPlace<kTicketStages> place(num_tickets_++);
    ptx::mbarrier_wait_peer(shared_.ticket_ring.empty.at(place), place.parity() ^ 1);
    ptx::store_peer(ptx::peer_address(&shared_.tickets[place.stage()], 1), item);
    ptx::mbarrier_arrive_peer(ptx::peer_address(&shared_.ticket_ring.full.at(place), 1));
  }
  __device__ __forceinline__ std::int32_t receive_ticket() {
    const RingPlace<kTicketStages> place(num_tickets_++);
    ptx::mbarrier_wait_peer(shared_.ticket_ring.full.at(place), place.parity());
    const std::int32_t item = shared_.tickets[place.stage()];
    ptx::mbarrier_arrive_peer(ptx::peer_address(&shared_.ticket_ring.empty.at(place), 0));
    return item;
  }
  __device__ __forceinline__ void run_sent_items() {
    for (std::int32_t item = receive_ticket(); item != kNoItem; item = receive_ticket()) {
      find_place(static_cast<std::uint32_t>(item));
      if (params_.coming.tiles != nullptr) {
        arrival().find_segment(present_item());
        // Bulk copies are asynchronous; the ticket implies that the keys have arrived.
        ptx::fence_async_global();
      }
      walk_item();
    }
  }

  /// Takes the next item. NOTE: a CTA takes an item only after it has walked the one before, and
  /// also its first item by a ticket: items wait for semaphores of lower items, so the lowest
  /// unfinished item must never be one that a CTA keeps for later, or that is bound to a CTA not
  /// yet resident.
  __device__ __forceinline__ std::int32_t take_ticket() const {
    return static_cast<std::int32_t>(atomicAdd(params_.items.ticket, 1u));
  }

  /// The info of the present item. It became free when V of the item before was loaded: by then the
  /// gradients of the item before that had been written.
  __device__ __forceinline__ ItemInfo& present_item() const {
    return shared_.items[num_items_ & 1];
  }
  __device__ __forceinline__ StepInfo& step_info() const {
    return shared_.steps[RingPlace<kC.step_stages()>(num_steps_).stage()];
  }
  __device__ __forceinline__ void send_step() const {
    ptx::mbarrier_arrive(shared_.step_full.at(RingPlace<kC.step_stages()>(num_steps_)));
  }

  /// Finds the item's tile and heads. NOTE: values go to shared memory before they are used,
  /// because the producer has 24 registers.
  __device__ __forceinline__ void find_place(std::uint32_t index) const {
    ProducerState& at = shared_.producer;
    const BackwardItem item =
        backward_item(params_.items.spans, params_.items.heads_kv, index, at.span);
    at.item = static_cast<std::int32_t>(index);
    at.span = item.span;
    at.k_tile = item.tile;
    present_item().kv_head = item.kv_head;
    find_split(params_.items.spans[item.span], item.split);
  }

  /// Finds the item's split and head groups.
  __device__ __forceinline__ void find_split(const TileSpan& span, std::int32_t split) const {
    ProducerState& at = shared_.producer;
    ItemInfo& info = present_item();
    at.groups_per_item = span.groups_per_item;
    at.group_begin = (info.kv_head * span.num_splits + split) * span.groups_per_item;
    at.is_sent = false;
    info.flags = (split == 0 ? kFirstSplit : 0) | (split + 1 == span.num_splits ? kLastSplit : 0);
    info.semaphore = semaphore_of({at.k_tile, info.kv_head});
    if (span.num_splits > 1) {
      const SlotUser user{at.k_tile, info.kv_head};
      info.slot = slot_of(span, user);
      info.awaited_semaphore = split > 0 ? info.semaphore : semaphore_of(user_before(span, user));
      info.awaited_value = split > 0 ? split : span.num_splits;
    }
  }

  /// The first warpgroup's semaphore for splits of a k tile and kv head; -1 without a user.
  __device__ __forceinline__ std::int32_t semaphore_of(SlotUser user) const {
    return user.tile < 0 ? -1 : 2 * (user.kv_head * params_.items.num_tiles + user.tile);
  }

  __device__ __forceinline__ void run_item(std::int32_t index) {
    find_place(static_cast<std::uint32_t>(index));
    if (params_.coming.tiles != nullptr && !arrival().await(present_item())) return;
    if constexpr (kC.ctas() > 1) send_ticket(index);
    walk_item();
  }

  __device__ __forceinline__ void walk_item() {
    ProducerState& at = shared_.producer;
    // A KeyTile in one load: key_begin, key_end, record_begin, record_end.
    const int4 tile = __ldg(reinterpret_cast<const int4*>(params_.items.tiles + at.k_tile));
    ItemInfo& item = present_item();
    item.key_begin = tile.x;
    item.num_keys = tile.y - tile.x;
    at.record_begin = tile.z;
    at.record_end = tile.w;
    if (tile.z >= tile.w) {
      send_item(false);
      return;
    }
    item.flags |= kHasSteps;
    if constexpr (kMayBeCut) at.are_keys_cut = are_keys_cut(tile.x);
    at.index = 0;
    do {
      for (at.record = at.record_begin; at.record < at.record_end; ++at.record) {
        run_record(start_record(item));
      }
    } while (params_.items.is_group_first && ++at.index < at.groups_per_item);
  }

  /// Begins a record. Returns the end of its q tiles.
  __device__ __forceinline__ std::int32_t start_record(const ItemInfo& item) const {
    ProducerState& at = shared_.producer;
    const BandSlice band = load_band(params_.items.records + at.record);
    at.mask = mask_of(band, item.key_begin);
    const QueryRun run = query_run(band, item.key_begin, kC.tile_keys(), params_.query.token_shift);
    at.tile_begin = run.tile_begin;
    at.full_begin = run.full_begin;
    at.full_end = run.full_end;
    at.is_last = at.record + 1 == at.record_end;
    return run.tile_end;
  }

  __device__ __forceinline__ void run_record(std::int32_t tile) {
    while (--tile >= shared_.producer.tile_begin) {
      std::int32_t& index = shared_.producer.index;
      if (!params_.items.is_group_first) index = 0;
      do {
        run_step(tile);
      } while (!params_.items.is_group_first && ++index < shared_.producer.groups_per_item);
    }
  }

  __device__ __forceinline__ void run_step(std::int32_t tile) {
    shared_.q_ring.wait_empty(RingPlace<kC.q_stages>(num_steps_));
    publish_step(tile);
    load_queries(tile);
    load_dout(tile);
    if constexpr (kMayBeCut) {
      if (shared_.producer.is_cut) ask(CutRequest::kRows, num_steps_);
    }
    ++num_steps_;
    if (!shared_.producer.is_sent) send_item(true);
    shared_.producer.is_sent = true;
  }

  __device__ __forceinline__ void publish_step(std::int32_t tile) const {
    ProducerState& at = shared_.producer;
    StepInfo& step = step_info();
    const bool is_masked = tile < at.full_begin || tile >= at.full_end;
    const bool is_last = at.is_last && at.index + 1 == at.groups_per_item && tile == at.tile_begin;
    step.flags = (is_masked ? kMasked : 0) | (is_last ? kLastStep : 0);
    at.group = at.group_begin + at.index;
    step.sum = at.group * params_.query.num_q_tiles + tile;
    step.group = at.group;
    step.q_tile = tile;
    step.record = at.record;
    if (is_masked) set_mask(step, at.mask, tile << params_.query.token_shift);
    if constexpr (kMayBeCut) at.is_cut = is_masked && is_cut(tile);
    send_step();
  }

  __device__ __forceinline__ bool is_cut(std::int32_t tile) const {
    if (params_.seen.queries == nullptr) return false;
    const std::int32_t token = tile << params_.query.token_shift;
    const std::int32_t end = token + (1 << params_.query.token_shift);
    return has_unseen(params_.seen.queries, token, min(end, params_.query.rows_q));
  }

  __device__ __forceinline__ bool are_keys_cut(std::int32_t key) const {
    if (params_.seen.keys == nullptr) return false;
    return has_unseen(params_.seen.keys, key, min(key + kC.tile_keys(), params_.seen.rows_k));
  }

  __device__ __forceinline__ ptx::BoxOrigin box_of(std::int32_t tile) const {
    return {0, shared_.producer.group << params_.query.packed_shift,
            tile << params_.query.token_shift};
  }
  /// The first row of the q tile in lse_log2 and delta.
  __device__ __forceinline__ std::int64_t row_of(std::int32_t tile) const {
    const std::int32_t sum = shared_.producer.group * params_.query.num_q_tiles + tile;
    return std::int64_t{sum} * kC.rows;
  }

  __device__ __forceinline__ void load_queries(std::int32_t tile) const {
    const RingPlace<kC.q_stages> place(num_steps_);
    const std::uint32_t stage = place.stage();
    ptx::Mbarrier& full = shared_.q_ring.full.at(place);
    ptx::mbarrier_arrive_expect(full, kC.q_bytes() + kVectorBytes);
    if (!kMayBeCut || !shared_.producer.is_cut) {
      load_panels<kC.rows, kC.dim_qk>(shared_.q[stage], params_.q, box_of(tile), full);
    }
    ptx::load_bytes(shared_.lse_log2[stage], params_.softmax.lse_log2 + row_of(tile), kVectorBytes,
                    full);
  }

  __device__ __forceinline__ void load_dout(std::int32_t tile) const {
    const RingPlace<kC.dout_stages> place(num_steps_);
    const std::uint32_t stage = place.stage();
    shared_.dout_ring.wait_empty(place);
    ptx::Mbarrier& full = shared_.dout_ring.full.at(place);
    ptx::mbarrier_arrive_expect(full, kC.dout_bytes() + kVectorBytes);
    if (!kMayBeCut || !shared_.producer.is_cut) {
      load_panels<kC.rows, kC.dim_v>(shared_.dout[stage], params_.dout, box_of(tile), full);
    }
    ptx::load_bytes(shared_.delta[stage], params_.softmax.delta + row_of(tile), kVectorBytes, full);
  }

  /// Publishes the present item's info, and loads its K and V if `has_tiles`.
  __device__ __forceinline__ void send_item(bool has_tiles) {
    const RingPlace<1> place(num_items_);
    const ItemInfo& item = present_item();
    ptx::BoxOrigin box{0, item.kv_head, item.key_begin};
    if constexpr (kC.ctas() > 1) box.token += ptx::cluster_rank() * kC.keys;
    shared_.k_ring.wait_empty(place);
    ptx::Mbarrier& k_full = shared_.k_ring.full.at(place);
    ptx::mbarrier_arrive_expect(k_full, has_tiles ? kC.k_bytes() + kC.peer_k_bytes() : 0);
    const bool is_cut = kMayBeCut && has_tiles && shared_.producer.are_keys_cut;
    if (has_tiles && !is_cut) {
      load_panels<kC.keys, kC.dim_qk>(shared_.k, params_.k, box, k_full);
      if constexpr (kC.ctas() > 1) {
        load_panels<kC.keys, kC.dim_qk / kC.ctas()>(shared_.peer_k, params_.k, peer_keys<kC>(item),
                                                    k_full);
      }
    }
    if (is_cut) ask(CutRequest::kKeys, num_items_);
    shared_.v_ring.wait_empty(place);
    ptx::Mbarrier& v_full = shared_.v_ring.full.at(place);
    ptx::mbarrier_arrive_expect(v_full, has_tiles ? kC.v_bytes() : 0);
    if (is_cut) {
      ask(CutRequest::kValues, num_items_);
    } else if (has_tiles) {
      load_panels<kC.keys, kC.dim_v>(shared_.v, params_.v, box, v_full);
    }
    ++num_items_;
  }

  /// Asks CutLoader for tiles of the present step or item with rows that nobody sees.
  __device__ __forceinline__ void ask(CutRequest::Kind kind, std::uint32_t number) const {
    CutRequest& cut = shared_.cut;
    const RingPlace<1> place(cut.count);
    shared_.cut_ring.wait_empty(place);
    ++cut.count;
    cut.kind = kind;
    cut.number = number;
    ptx::mbarrier_arrive(shared_.cut_ring.full.at(place));
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  std::uint32_t num_steps_ = 0;
  std::uint32_t num_items_ = 0;
  std::uint32_t num_tickets_ = 0;
};

}  // namespace magi::sm90
