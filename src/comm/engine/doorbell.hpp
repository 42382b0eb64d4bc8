// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace magi::comm {

/// An event count in shared memory: who changes something that a rank may wait for rings its bell.
struct Doorbell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

/// Wakes whoever sleeps at the bell; one atomic add when nobody does.
void ring(Doorbell& bell) noexcept;

/// The value to pass to wait_ring: read it before looking for work, so that no ring is lost.
inline std::uint32_t read_rings(const Doorbell& bell) {
  return bell.rings.load(std::memory_order_seq_cst);
}

/// Sleeps until the bell rings after `seen` was read, at most `limit`. May return early.
void wait_ring(Doorbell& bell, std::uint32_t seen, std::chrono::milliseconds limit) noexcept;

}  // namespace magi::comm
