// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/nvlink/peer_kernels.hpp"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/system.cuh"

// Waits of kernels for words of peers. The first that fails writes the mailbox, and all later ones
// end at once.
namespace magi::comm {

static_assert(kMaxPeers <= 32, "a lane for each peer");

/// The subject of a wait, for the mailbox.
struct WaitSubject {
  PeerWait what;
  std::int32_t peer;
  std::int32_t move;
  std::uint64_t pass;  ///< the pass whose digest is compared
};

/// Writes this rank's first failure to the mailbox. A word in device memory decides which is first,
/// because not every link carries atomic operations to host memory.
__device__ inline void report(const PeerView& view, const WaitSubject& subject, PeerWait failed,
                              std::uint64_t expected, std::uint64_t seen) {
  PeerMailbox& box = *view.mailbox;
  if (ptx::load_acquire_system(&box.is_closed) != 0) return;
  if (atomicExch(&view.state->is_reported, 1U) != 0) return;
  const std::uint64_t slot = subject.pass % kKeptDigests;
  box.peer = subject.peer;
  box.move = subject.move;
  box.expected = expected;
  box.seen = seen;
  box.digest = view.state->digest[slot];
  box.peer_digest = view.control[view.rank]->digest[slot][subject.peer];
  ptx::fence_system();
  ptx::store_system(reinterpret_cast<std::int32_t*>(&box.failed),
                    static_cast<std::int32_t>(failed));
  ptx::store_system(&box.is_closed, 1);
}

/// Writes to the mailbox also the subject of a wait that the host ends.
__device__ inline void note_stop(const PeerView& view, const WaitSubject& subject) {
  PeerMailbox& box = *view.mailbox;
  if (atomicExch(&view.state->is_noted, 1U) != 0) return;
  box.stopped_peer = subject.peer;
  box.stopped_move = subject.move;
  box.stopped_pass = subject.pass;
  ptx::fence_system();
  ptx::store_system(reinterpret_cast<std::int32_t*>(&box.stopped),
                    static_cast<std::int32_t>(subject.what));
}

/// Returns whether a peer began a pass for the same call. True also if it has not begun the pass,
/// or is so far ahead that its digest has been overwritten.
__device__ inline bool is_same_call(const PeerView& view, std::int32_t peer, std::uint64_t pass) {
  const PeerControl& own = *view.control[view.rank];
  const std::uint64_t begun = ptx::load_acquire_system(&own.begun[peer]);
  if (begun < pass) return true;
  const std::uint64_t slot = pass % kKeptDigests;
  const std::uint64_t digest = ptx::load_acquire_system(&own.digest[slot][peer]);
  return digest == view.state->digest[slot] ||
         ptx::load_acquire_system(&own.begun[peer]) >= pass + kKeptDigests - 1;
}

/// Stops all writes of this rank to peers, which may still read the old contents. Returns false.
__device__ inline bool end_group(const PeerView& view) {
  view.state->is_failed = 1;
  __threadfence();
  return false;
}

/// Waits until a word reaches a value. Returns false after a failure, which is then in the mailbox.
__device__ inline bool wait_for_word(const PeerView& view, const std::uint64_t* word,
                                     std::uint64_t value, const WaitSubject& subject) {
  constexpr int kPollsPerCheck = 32;
  const PeerControl& own = *view.control[view.rank];
  const std::uint64_t start = ptx::global_time_ns();
  for (int poll = 1;; ++poll) {
    const std::uint64_t seen = ptx::load_acquire_system(word);
    if (seen >= value) return true;
    if (poll % kPollsPerCheck != 0) continue;
    if (ptx::load_acquire_system(&view.mailbox->is_closed) != 0) {
      note_stop(view, subject);
      return end_group(view);
    }
    PeerWait failed = PeerWait::None;
    if (ptx::load_acquire_system(&own.aborted[subject.peer]) != 0) failed = PeerWait::Left;
    if (!is_same_call(view, subject.peer, subject.pass)) failed = PeerWait::OtherPlan;
    if (ptx::global_time_ns() - start > view.deadline_ns) failed = subject.what;
    if (failed != PeerWait::None) {
      report(view, subject, failed, value, seen);
      return end_group(view);
    }
    ptx::sleep_ns(100);
  }
}

/// Returns is_same_call, and reports a peer that began the pass for another call.
__device__ inline bool compare_call(const PeerView& view, const WaitSubject& subject) {
  if (is_same_call(view, subject.peer, subject.pass)) return true;
  report(view, subject, PeerWait::OtherPlan, subject.pass, subject.pass);
  return end_group(view);
}

/// Waits for rows, and returns whether all have arrived and every peer that has begun the pass
/// began it for the same call. Called by one warp, with a lane for each peer.
__device__ inline bool has_arrived(const PeerView& view, const RowArrival& arrival,
                                   std::uint64_t pass) {
  const auto peer = static_cast<std::int32_t>(threadIdx.x % 32);
  bool is_whole = view.state->is_failed == 0;
  if (peer < view.num_ranks) {
    const PeerControl& own = *view.control[view.rank];
    const WaitSubject subject{PeerWait::Rows, peer, arrival.move, pass};
    const bool is_source = (arrival.sources >> peer & 1) != 0;
    for (std::int32_t section = arrival.num_sections - 1; is_source && section >= 0 && is_whole;
         --section) {
      is_whole = wait_for_word(view, &own.arrived[arrival.move][section][peer], pass, subject);
    }
    is_whole = is_whole && compare_call(view, subject);
  }
  return __all_sync(~0U, is_whole);
}

/// Publishes to all peers that earlier kernels have written the move's rows. Called by one warp.
__device__ inline void publish_written(const PeerView& view, const RowArrival& arrival,
                                       std::uint64_t pass) {
  const auto peer = static_cast<std::int32_t>(threadIdx.x % 32);
  if (peer >= view.num_ranks || peer == view.rank || view.state->is_failed != 0) return;
  ptx::fence_system();
  ptx::store_system(&view.control[peer]->arrived[arrival.move][0][view.rank], pass);
}

/// Fills memory with NaN. Called by one warp.
__device__ inline void fill_with_nan(std::byte* data, std::int64_t size_bytes) {
  constexpr std::uint16_t kNotANumber = 0xffff;  // in every floating-point type
  auto* halves = reinterpret_cast<std::uint16_t*>(data);
  for (std::int64_t i = threadIdx.x; i < size_bytes / 2; i += 32) halves[i] = kNotANumber;
}

/// Redirects addresses in a peer's area to the same place in the local one. Called by one warp.
__device__ inline void redirect_to_local(const PeerView& view, const RowArrival& arrival) {
  const AddressTable& table = arrival.addresses;
  for (std::int32_t i = threadIdx.x; i < 2 * table.num_records; i += 32) {
    auto* address = reinterpret_cast<std::uint64_t*>(
        table.records + static_cast<std::int64_t>(i / 2) * table.record_bytes +
        table.offsets[i % 2]);
    for (std::int32_t peer = 0; peer < view.num_ranks; ++peer) {
      const auto begin = reinterpret_cast<std::uint64_t>(arrival.areas[peer]);
      if (*address < begin || *address >= begin + arrival.area_bytes) continue;
      *address += reinterpret_cast<std::uint64_t>(arrival.areas[view.rank]) - begin;
      break;
    }
  }
}

/// Waits for rows; after a failure does what RowArrival says. Called by one warp.
__device__ inline void await_arrival(const PeerView& view, const RowArrival& arrival,
                                     std::uint64_t pass) {
  if (has_arrived(view, arrival, pass)) return;
  fill_with_nan(arrival.data, arrival.size_bytes);
  fill_with_nan(arrival.results, arrival.results_bytes);
  redirect_to_local(view, arrival);
}

}  // namespace magi::comm
