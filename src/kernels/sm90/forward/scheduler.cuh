// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/schedule/host/item_order.hpp"
#include "kernels/schedule/host/tile_run.hpp"
#include "kernels/sm90/arrivals.cuh"
#include "kernels/sm90/forward/params.hpp"
#include "kernels/sm90/forward/shared.cuh"
#include "kernels/sm90/global_memory.cuh"

namespace magi::sm90 {

/// An item: a work's tile and records, and the first of its heads. Its other values are in shared
/// memory.
struct Item {
  std::int32_t tile;
  std::int32_t record_begin;
  std::int32_t record_end;
  std::int32_t head_begin;
};

template <ForwardConfig kC>
__device__ __forceinline__ Item load_item(const ForwardParams& params, std::int32_t num_works,
                                          std::int32_t index, ItemPart& part, ItemWait& wait) {
  const ForwardItem item =
      forward_item({num_works, params.head_groups, params.groups_per_section,
                    params.num_in_flight_works, params.in_flight_groups_per_section},
                   static_cast<std::uint32_t>(index));
  const std::int32_t group = item.head_group;
  const auto* source = reinterpret_cast<const int4*>(params.tiles + item.work);
  const int4 work = __ldg(source);
  if constexpr (kC.has_any_out()) {
    const int4 ends = __ldg(source + 1);
    part.k_end = ends.x;
    part.k_begin = ends.y;
    part.partial = ends.z < 0 ? -1 : ends.z * params.head_groups + group;
  }
  wait.first_flags = kFirstRun;
  if (params.arrivals.flags != nullptr) {
    wait.sources = __ldg(&params.tiles[item.work].sources);
    wait.index = index;
  }
  return {work.x, work.y, work.z, group * params.packed_heads};
}

/// The one thread that takes items and walks their records. It sends each run to the loader and
/// the consumers, as far ahead of them as the message ring is deep. So no warp waits for the
/// latency of tickets, items and records, or for in-flight keys while there is work on own
/// keys.
template <ForwardConfig kC>
class Scheduler {
 public:
  __device__ __forceinline__ Scheduler(SharedStorage<kC>& shared, const ForwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    init_arrivals(shared_.wait.arrivals, params_.arrivals);
    if (params_.is_for_deferred) ptx::await_kernels_before();
    shared_.wait.num_items = count_items();
    std::int32_t ticket = take_ticket();
    while (ticket < shared_.wait.num_items) {
      const std::int32_t index = params_.is_for_deferred ? params_.deferred.items[ticket] : ticket;
      const Item item = load_item<kC>(params_, num_works(), index, shared_.part, shared_.wait);
      if (ticket < static_cast<std::int32_t>(gridDim.x)) begin(item);
      ticket = take_ticket();
      if (params_.arrivals.flags == nullptr || await_item(item)) run_item(item);
    }
    // NOTE: no earlier. The next kernel would wait on the multiprocessors that this one leaves
    // free, and keep out work that must run there now, such as a push of keys.
    if (params_.arrivals.flags == nullptr) ptx::launch_dependents();
    send({.flags = kEndOfItems});
    if (params_.is_for_deferred) end_deferred();
    // The kernel that pushes keys runs beside this one: later kernels must wait for it too.
    if (params_.arrivals.flags != nullptr) ptx::await_kernels_before();
  }

 private:
  /// Begins with an item, which was read from the list alone: waits for earlier kernels. A CTA that
  /// starts after others have taken as many items as there are CTAs need not wait: those have
  /// waited.
  __device__ __forceinline__ void begin(const Item& item) const {
    if (params_.is_beside) return;
    if (item.record_begin < item.record_end) ptx::prefetch(params_.records + item.record_begin);
    ptx::await_kernels_before();
  }

  /// The number of works, read anew in each call to save registers.
  __device__ __forceinline__ std::int32_t num_works() const {
    return params_.outcome == nullptr ? params_.num_works : params_.outcome->num_works;
  }
  __device__ __forceinline__ std::int32_t count_items() const {
    return params_.is_for_deferred ? static_cast<std::int32_t>(*params_.deferred.count)
                                   : num_works() * params_.head_groups;
  }

  /// The counter wraps to 0 by itself: each item takes one ticket, and each CTA one more that is no
  /// item. NOTE: CTAs draw the first item too. An item bound to a CTA's number would wait while
  /// another kernel, such as a collective call, holds that CTA's multiprocessor.
  __device__ __forceinline__ std::int32_t take_ticket() const {
    const auto limit = static_cast<unsigned>(shared_.wait.num_items) + gridDim.x - 1;
    return static_cast<std::int32_t>(atomicInc(params_.ticket, limit));
  }

  /// Waits for the item's keys; false where it is deferred.
  __device__ __forceinline__ bool await_item(const Item& item) {
    const std::uint32_t sources = shared_.wait.sources;
    if (sources == 0) return true;
    const std::int32_t section = item.head_begin / params_.heads_per_arrival_chunk;
    switch (await_sources(params_.arrivals, shared_.wait.arrivals, section, sources)) {
      case Arrival::Known:
        return true;
      case Arrival::New:
        shared_.wait.first_flags = kFirstRun | kNewKeys;
        return true;
      case Arrival::Late:
        break;
    }
    params_.deferred.items[atomicAdd(params_.deferred.count, 1u)] = shared_.wait.index;
    return false;
  }

  /// The last CTA here resets the counts to 0. (Normally no item is deferred; a check for that at
  /// the kernel's begin would change the code of the consumers.)
  __device__ __forceinline__ void end_deferred() const {
    ptx::fence_gpu();  // the count has been read
    if (atomicInc(params_.deferred.num_ended, gridDim.x - 1) == gridDim.x - 1) {
      *params_.deferred.count = 0;
    }
  }

  __device__ __forceinline__ void run_item(const Item& item) {
    const std::int32_t token = item.tile * params_.tile_tokens;
    if (item.record_begin >= item.record_end) {
      send({.token_begin = token, .head_begin = item.head_begin, .flags = kFirstRun | kLastRun});
    }
    for (std::int32_t i = item.record_begin; i < item.record_end; ++i) {
      // The cut changes only whole slices: those of a tile whose records did not fit.
      const Range rows{token, token + params_.tile_tokens};
      BandSlice band = shrink(cut_q(load_band(params_.records + i), rows));
      if (band.q0 >= band.q1) continue;
      if constexpr (kC.has_any_out()) {
        if (i == item.record_begin) band.k1 = min(band.k1, shared_.part.k_end);
        if (i + 1 == item.record_end) band.k0 = max(band.k0, shared_.part.k_begin);
      }
      run_record(band, item, i == item.record_begin, i + 1 == item.record_end);
    }
  }

  __device__ __forceinline__ void run_record(const BandSlice& band, const Item& item, bool is_first,
                                             bool is_last) {
    const std::int32_t token = item.tile * params_.tile_tokens;
    const std::int32_t row_end = min(token + params_.tile_tokens, params_.rows_q);
    const TileRun run = tile_run(band, token, row_end, kC.keys);
    const bool has_wide = run.num_tiles >= 2 || !is_first;
    const bool is_short = is_last && has_wide && ends_short(band, run, kC.keys, kC.trimmed_keys);
    send({.token_begin = token,
          .head_begin = item.head_begin,
          .num_tiles = run.num_tiles - (is_short ? 1 : 0),
          .flags = (is_first ? shared_.wait.first_flags : 0) | (is_last ? kLastRun : 0) |
                   (is_short ? kShortTile : 0),
          .k_end = run.k_end,
          .full_begin = run.full_begin,
          .full_end = run.full_end,
          .partial = kC.has_any_out() ? shared_.part.partial : -1,
          .q0 = band.q0,
          .q1 = band.q1,
          .k0 = band.k0,
          .k1 = band.k1,
          .d_min = band.d_min,
          .d_max = band.d_max});
  }

  __device__ __forceinline__ void send(const RunMessage& message) {
    shared_.message_ring.wait_empty(place_);
    shared_.messages[place_.stage()] = message;
    ptx::mbarrier_arrive(shared_.message_ring.full.at(place_));
    place_.advance();
  }

  SharedStorage<kC>& shared_;
  const ForwardParams& params_;
  RingPlace<kMessageStages> place_;  ///< where the next message goes
};

}  // namespace magi::sm90
