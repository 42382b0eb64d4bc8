// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <source_location>

// The loop of every wait that device code polls for. A build with MAGI_WAIT_LIMIT_MS (the CMake
// option MAGI_DEBUG_WAITS sets it) bounds the loop: a wait that lasts longer prints one line and
// ends the launch with an error. Other builds have the bare loop. Named barriers and
// griddepcontrol.wait cannot be polled, hence not bounded: what holds them up is one of these
// waits.
namespace magi::ptx {

/// The subject of a wait: the kind and address of the thing polled, and the value that ends the
/// wait.
struct WaitTarget {
  const char* kind;
  const void* address;
  unsigned expected;
};

/// Nanoseconds of a clock that all multiprocessors share.
__device__ __forceinline__ std::uint64_t global_time_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

#ifdef MAGI_WAIT_LIMIT_MS
/// Prints what the warp waits for and ends the launch. The first of the lanes that wait together
/// does so, the others go on waiting until that happens.
static __device__ __noinline__ void report_wait(const WaitTarget& target, std::uint64_t seen,
                                                const std::source_location& where) {
  if (static_cast<int>(threadIdx.x % 32) != __ffs(static_cast<int>(__activemask())) - 1) return;
  printf(
      "magi: waited %d ms for a %s at %p in %s:%u %s, block %u, warp %u: expected %u, saw %#llx\n",
      MAGI_WAIT_LIMIT_MS, target.kind, target.address, where.file_name(), where.line(),
      where.function_name(), blockIdx.x, threadIdx.x / 32, target.expected,
      static_cast<unsigned long long>(seen));
  __threadfence_system();  // the line is on its way before the launch ends
  __trap();
}
#endif

/// Polls `is_over` until it holds; `seen` reads the target's value for the report.
template <typename IsOver, typename Seen>
__device__ __forceinline__ void wait_until(const IsOver& is_over,
                                           [[maybe_unused]] const WaitTarget& target,
                                           [[maybe_unused]] const Seen& seen,
                                           [[maybe_unused]] const std::source_location& where) {
#ifdef MAGI_WAIT_LIMIT_MS
  const std::uint64_t begin = global_time_ns();
  while (!is_over()) {
    if (global_time_ns() - begin > std::uint64_t{MAGI_WAIT_LIMIT_MS} * 1'000'000) {
      report_wait(target, seen(), where);
    }
  }
#else
  while (!is_over()) {
  }
#endif
}

}  // namespace magi::ptx
