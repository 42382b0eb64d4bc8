// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/doorbell.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace magi::comm {
namespace {

// Enough to catch an answer that is already on its way; ranks may outnumber cores.
constexpr int kSpins = 100;

void pause_briefly() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* limit) noexcept {
  // Not FUTEX_PRIVATE: the word may lie in memory that several processes map.
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, limit, nullptr, 0);
}

}  // namespace

void ring(Doorbell& bell) noexcept {
  bell.rings.fetch_add(1, std::memory_order_seq_cst);
  // A sleeper counts itself before the kernel compares `rings`: whoever is missed here sees the new
  // value there.
  if (bell.sleepers.load(std::memory_order_seq_cst) != 0) {
    futex(bell.rings, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void wait_ring(Doorbell& bell, std::uint32_t seen, std::chrono::milliseconds limit) noexcept {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (bell.rings.load(std::memory_order_relaxed) != seen) return;
    pause_briefly();
  }
  timespec span{};
  span.tv_sec = static_cast<std::time_t>(limit.count() / 1000);
  span.tv_nsec = static_cast<long>((limit.count() % 1000) * 1'000'000);
  bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  futex(bell.rings, FUTEX_WAIT, seen, &span);
  bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace magi::comm
