// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/order.cuh"
#include "kernels/sm90/arrivals.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"

// Items that wait for keys. The producer takes an item and waits until the keys of its k tile have
// come, or the patience of its CTA has ended: then it leaves the item over, a bit in a bit map, and
// goes on. A second launch behind the wait for all keys works at what was left over.
//
// Lists whose items add to dQ in order have no such items: one that waits would hold up all that
// add after it, and one that is left over would stop them. Their keys are awaited before the
// launch. Elsewhere items of k tiles that wait for keys depend on each other in two ways only,
// which are those of splits (item_order.hpp): a split waits for the split before it, and the first
// split for the last one of the k tile and kv head that had its slot before. So the splits of a k
// tile and kv head have one verdict, Goes or LeftOver, which the first of them gives: it goes if
// its keys have come and the verdict of the user of its slot before is Goes too. Every other split
// waits for that verdict and does likewise.
//
// Why nothing deadlocks: an item that goes depends on items that go, of lower number. So among the
// items that go the lowest unfinished one never waits, as in lists without arrivals. A verdict that
// an item waits for is given by the producer of a running CTA, for it belongs to a lower item and
// items are taken in order; the lowest item without a verdict waits for flags alone, no longer than
// the patience of its CTA. The bit map keeps the order of the list, so the second launch takes what
// is left over in the same order: all of a k tile's splits, and users of a slot one after the
// other.
namespace magi::sm90 {

enum class Verdict : unsigned { None, Goes, LeftOver };

template <BackwardConfig kC>
class ItemArrival {
 public:
  __device__ __forceinline__ ItemArrival(BackwardStorage<kC>& shared, const ComingItems& coming)
      : shared_(shared), coming_(coming) {}

  /// Whether the launch works at any item.
  __device__ __forceinline__ bool has_items() const {
    return !coming_.is_for_left_over || *coming_.num_left_over != 0;
  }
  /// Whether the launch works at an item.
  __device__ __forceinline__ bool has(std::int32_t index) const {
    return !coming_.is_for_left_over ||
           (coming_.left_over_words[index >> 5] >> (index & 31) & 1) != 0;
  }

  /// Fills in the item where the gradients of its first key go. Returns its k tile's TileArrival.
  __device__ __forceinline__ int2 find_segment(ItemInfo& item) const {
    const int2 tile = __ldg(reinterpret_cast<const int2*>(coming_.tiles + shared_.producer.k_tile));
    item.first_segment = tile.y;
    return tile;
  }

  /// Fills what the item says of arrivals. Returns whether its keys may be loaded; else it has been
  /// left over.
  __device__ __forceinline__ bool await(ItemInfo& item) const {
    const int2 tile = find_segment(item);
    if (coming_.flags.flags == nullptr || tile.x == 0) return true;
    const bool goes = find_verdict(item, static_cast<std::uint32_t>(tile.x)) == Verdict::Goes;
    // Bulk copies are asynchronous.
    ptx::fence_async_global();
    if (!goes) leave_over(shared_.producer.item);
    return goes;
  }

 private:
  /// NOTE: a later split has not seen the flags itself: that the first split has seen them comes
  /// with its verdict.
  __device__ __forceinline__ Verdict find_verdict(const ItemInfo& item,
                                                  std::uint32_t sources) const {
    if ((item.flags & kFirstSplit) == 0) return await_verdict(item.semaphore);
    const std::int32_t section = item.kv_head / coming_.heads_per_section;
    const bool is_late =
        await_sources(coming_.flags, shared_.arrivals, section, sources) == Arrival::Late;
    Verdict verdict = is_late ? Verdict::LeftOver : Verdict::Goes;
    if ((item.flags & kLastSplit) != 0) return verdict;
    if (item.awaited_semaphore >= 0 && await_verdict(item.awaited_semaphore) != Verdict::Goes) {
      verdict = Verdict::LeftOver;
    }
    ptx::store_release(verdict_of(item.semaphore), static_cast<unsigned>(verdict));
    return verdict;
  }

  /// The verdict of the k tile and kv head with two semaphores from `semaphore` on.
  __device__ __forceinline__ unsigned* verdict_of(std::int32_t semaphore) const {
    return coming_.verdicts + semaphore / 2;
  }
  __device__ __forceinline__ Verdict
  await_verdict(std::int32_t semaphore,
                const std::source_location& where = std::source_location::current()) const {
    const unsigned* address = verdict_of(semaphore);
    unsigned verdict = 0;
    const auto is_given = [&] { return (verdict = ptx::load_acquire(address)) != 0; };
    ptx::wait_until(
        is_given, {"verdict", address, 1}, [&] { return verdict; }, where);
    return static_cast<Verdict>(verdict);
  }

  __device__ __forceinline__ void leave_over(std::int32_t index) const {
    atomicOr(coming_.left_over_words + (index >> 5), 1u << (index & 31));
    atomicAdd(coming_.num_left_over, 1u);
  }

  BackwardStorage<kC>& shared_;
  const ComingItems& coming_;
};

}  // namespace magi::sm90
