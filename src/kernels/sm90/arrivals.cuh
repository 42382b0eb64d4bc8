// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/order.cuh"
#include "kernels/sm90/arguments.hpp"

// The wait for keys that come while a kernel runs, by the one thread of a CTA that takes its items.
// A row may be loaded when its flag has been seen and, in this order: that thread has executed
// fence_system; the thread that issues the loads, if it is another, has been told through an
// mbarrier; it has executed fence_async_global, since bulk copies go through a proxy of their own.
namespace magi::sm90 {

/// The arrivals that that thread remembers. In shared memory, because it has few registers.
struct ArrivalState {
  std::int64_t spin_budget_ns;  ///< that is left
  std::int32_t section;         ///< arrival chunk that `seen` is of; -1: none
  std::uint32_t seen;           ///< sources of which its keys have been seen to be there
};

enum class Arrival : std::int32_t {
  Known,  ///< had been seen before
  New,    ///< seen now: the loads are to be ordered behind it
  Late,   ///< spin budget has ended
};

__device__ __forceinline__ void init_arrivals(ArrivalState& state, const ArrivalFlags& arrivals) {
  state = {arrivals.spin_budget_ns, -1, 0};
}

/// Those of `sources` whose flags are still down.
__device__ __forceinline__ std::uint32_t missing_sources(const ArrivalFlags& arrivals,
                                                         std::int32_t section,
                                                         std::uint32_t sources) {
  const std::uint64_t expected = __ldg(arrivals.expected);
  const std::uint64_t* flags = arrivals.flags + section * arrivals.num_sources;
  std::uint32_t missing = 0;
  while (sources != 0) {
    const std::uint32_t lowest = sources & (0U - sources);
    if (ptx::load_relaxed_system(flags + __ffs(static_cast<int>(lowest)) - 1) < expected) {
      missing |= lowest;
    }
    sources ^= lowest;
  }
  return missing;
}

/// Polls until none of `sources` is missing or the CTA's spin budget has ended. Returns those that
/// are.
__device__ __forceinline__ std::uint32_t poll_sources(const ArrivalFlags& arrivals,
                                                      ArrivalState& state, std::int32_t section,
                                                      std::uint32_t sources) {
  constexpr unsigned kPauseNs = 64;
  std::uint32_t missing = missing_sources(arrivals, section, sources);
  if (missing == 0 || state.spin_budget_ns <= 0) return missing;
  const std::uint64_t begin = ptx::global_time_ns();
  std::int64_t waited = 0;
  while (missing != 0 && waited < state.spin_budget_ns) {
    ptx::sleep_ns(kPauseNs);
    missing = missing_sources(arrivals, section, missing);
    waited = static_cast<std::int64_t>(ptx::global_time_ns() - begin);
  }
  state.spin_budget_ns -= waited;
  return missing;
}

/// Waits, with what spin budget is left, for the keys of `sources` in an arrival chunk.
__device__ __forceinline__ Arrival await_sources(const ArrivalFlags& arrivals, ArrivalState& state,
                                                 std::int32_t section, std::uint32_t sources) {
  if (state.section != section) {
    state.section = section;
    state.seen = 0;
  }
  sources &= ~state.seen;
  if (sources == 0) return Arrival::Known;
  if (poll_sources(arrivals, state, section, sources) != 0) return Arrival::Late;
  ptx::fence_system();
  state.seen |= sources;
  return Arrival::New;
}

}  // namespace magi::sm90
