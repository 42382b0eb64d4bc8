// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/order.cuh"
#include "kernels/sm90/arrivals.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"

// Items that wait for keys. The producer takes an item and waits until the keys of its k tile have
// come, or the spin budget of its CTA has ended: then it leaves the item over, a bit in a bit map,
// and goes on. A second launch after the wait for all keys works at what was deferred.
//
// Lists whose items add to dQ in order have no such items: one that waits would hold up all that
// add after it, and one that is deferred would stop them. Their keys are awaited before the
// launch. Elsewhere items of k tiles that wait for keys depend on each other in two ways only,
// which are those of splits (item_order.hpp): a split waits for the split before it, and the first
// split for the last one of the k tile and kv head that had its slot before. So the splits of a k
// tile and kv head have one decision, Goes or Deferred, which the first of them gives: it goes if
// its keys have come and the decision of the user of its slot before is Goes too. Every other split
// waits for that decision and does likewise.
//
// Why nothing deadlocks: an item that goes depends on items that go, of lower number. So among the
// items that go the lowest unfinished one never waits, as in lists without arrivals. A decision
// that an item waits for is given by the producer of a running CTA, for it belongs to a lower item
// and items are taken in order; the lowest item without a decision waits for flags alone, no longer
// than the spin budget of its CTA. The bit map keeps the order of the list, so the second launch
// takes what is deferred in the same order: all of a k tile's splits, and users of a slot one after
// the other.
namespace magi::sm90 {

enum class Decision : unsigned { None, Goes, Deferred };

template <BackwardConfig kC>
class ItemArrival {
 public:
  __device__ __forceinline__ ItemArrival(BackwardStorage<kC>& shared, const InFlightItems& coming)
      : shared_(shared), in_flight_(coming) {}

  /// Whether the launch works at any item.
  __device__ __forceinline__ bool has_items() const {
    return !in_flight_.is_for_deferred || *in_flight_.num_deferred != 0;
  }
  /// Whether the launch works at an item.
  __device__ __forceinline__ bool has(std::int32_t index) const {
    return !in_flight_.is_for_deferred ||
           (in_flight_.deferred_words[index >> 5] >> (index & 31) & 1) != 0;
  }

  /// Fills in the item where the gradients of its first key go. Returns its k tile's TileArrival.
  __device__ __forceinline__ int2 find_segment(ItemInfo& item) const {
    const int2 tile =
        __ldg(reinterpret_cast<const int2*>(in_flight_.tiles + shared_.producer.k_tile));
    item.first_segment = tile.y;
    return tile;
  }

  /// Fills what the item says of arrivals. Returns whether its keys may be loaded; else it has been
  /// deferred.
  __device__ __forceinline__ bool await(ItemInfo& item) const {
    const int2 tile = find_segment(item);
    if (in_flight_.flags.flags == nullptr || tile.x == 0) return true;
    const bool goes = find_decision(item, static_cast<std::uint32_t>(tile.x)) == Decision::Goes;
    // Bulk copies are asynchronous.
    ptx::fence_async_global();
    if (!goes) leave_over(shared_.producer.item);
    return goes;
  }

 private:
  /// NOTE: a later split has not seen the flags itself: that the first split has seen them comes
  /// with its decision.
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

  /// The decision of the k tile and kv head with two semaphores from `semaphore` on.
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

  __device__ __forceinline__ void leave_over(std::int32_t index) const {
    atomicOr(in_flight_.deferred_words + (index >> 5), 1u << (index & 31));
    atomicAdd(in_flight_.num_deferred, 1u);
  }

  BackwardStorage<kC>& shared_;
  const InFlightItems& in_flight_;
};

}  // namespace magi::sm90
