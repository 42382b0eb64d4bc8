// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/order.cuh"
#include "kernels/sm90/arrivals.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"

// Items that wait for keys. The producer takes an item and waits until the keys of its k tile have
// arrived. If the spin budget of its CTA ends first, it defers the item (a bit in a bit map) and
// continues. A second launch, after the wait for all keys, runs the deferred items.
//
// Lists whose items add to dQ in order have no such items: an item that waits or is deferred would
// delay all that add after it. Their keys are awaited before the launch. In other lists, items that
// wait for keys depend on each other only through splits (item_order.hpp): a split waits for the
// split before it, and the first split for the last split of the previous user of its slot. So the
// splits of a k tile and kv head share one decision, Goes or Deferred, which the first split makes:
// it goes if its keys have arrived and the previous user of its slot goes too. Every other split
// waits for this decision and follows it.
//
// Why there is no deadlock: an item that goes depends only on items of lower number that go. So the
// lowest unfinished one of these never waits, as in lists without arrivals. If an item waits for a
// decision, that belongs to a lower item. Items are taken in order, so the producer of a running
// CTA makes it. The lowest item without a decision waits for flags only, no longer than the spin
// budget of its CTA. The bit map keeps the order of the list, so the second launch takes deferred
// items in the same order: all splits of a k tile, and users of a slot one after the other.
namespace magi::sm90 {

enum class Decision : unsigned { None, Goes, Deferred };

template <BackwardConfig kC>
class ItemArrival {
 public:
  __device__ __forceinline__ ItemArrival(BackwardStorage<kC>& shared, const InFlightItems& coming)
      : shared_(shared), in_flight_(coming) {}

  /// Whether the launch runs any item.
  __device__ __forceinline__ bool has_items() const {
    return !in_flight_.is_for_deferred || *in_flight_.num_deferred != 0;
  }
  /// Whether the launch runs an item.
  __device__ __forceinline__ bool has(std::int32_t index) const {
    return !in_flight_.is_for_deferred ||
           (in_flight_.deferred_words[index >> 5] >> (index & 31) & 1) != 0;
  }

  /// Sets the item's first_segment. Returns the TileArrival of its k tile.
  __device__ __forceinline__ int2 find_segment(ItemInfo& item) const {
    const int2 tile =
        __ldg(reinterpret_cast<const int2*>(in_flight_.tiles + shared_.producer.k_tile));
    item.first_segment = tile.y;
    return tile;
  }

  /// Sets the item's first_segment and waits for its keys. Returns false if it defers the item.
  __device__ __forceinline__ bool await(ItemInfo& item) const {
    const int2 tile = find_segment(item);
    if (in_flight_.flags.flags == nullptr || tile.x == 0) return true;
    const bool goes = find_decision(item, static_cast<std::uint32_t>(tile.x)) == Decision::Goes;
    // Bulk copies are asynchronous.
    ptx::fence_async_global();
    if (!goes) defer(shared_.producer.item);
    return goes;
  }

 private:
  /// NOTE: later splits do not read the flags; the first split's decision implies that it saw them.
  __device__ __forceinline__ Decision find_decision(const ItemInfo& item,
                                                    std::uint32_t sources) const {
    if ((item.flags & kFirstSplit) == 0) return await_decision(item.semaphore);
    const std::int32_t section = item.kv_head / in_flight_.heads_per_section;
    const bool is_late =
        await_sources(in_flight_.flags, shared_.arrivals, section, sources) == Arrival::Late;
    Decision decision = is_late ? Decision::Deferred : Decision::Goes;
    if ((item.flags & kLastSplit) != 0) return decision;
    if (item.awaited_semaphore >= 0 && await_decision(item.awaited_semaphore) != Decision::Goes) {
      decision = Decision::Deferred;
    }
    ptx::store_release(decision_of(item.semaphore), static_cast<unsigned>(decision));
    return decision;
  }

  /// The decision of the k tile and kv head whose two semaphores begin at `semaphore`.
  __device__ __forceinline__ unsigned* decision_of(std::int32_t semaphore) const {
    return in_flight_.decisions + semaphore / 2;
  }
  __device__ __forceinline__ Decision
  await_decision(std::int32_t semaphore,
                 const std::source_location& where = std::source_location::current()) const {
    const unsigned* address = decision_of(semaphore);
    unsigned decision = 0;
    const auto is_given = [&] { return (decision = ptx::load_acquire(address)) != 0; };
    ptx::wait_until(
        is_given, {"decision", address, 1}, [&] { return decision; }, where);
    return static_cast<Decision>(decision);
  }

  __device__ __forceinline__ void defer(std::int32_t index) const {
    atomicOr(in_flight_.deferred_words + (index >> 5), 1u << (index & 31));
    atomicAdd(in_flight_.num_deferred, 1u);
  }

  BackwardStorage<kC>& shared_;
  const InFlightItems& in_flight_;
};

}  // namespace magi::sm90
