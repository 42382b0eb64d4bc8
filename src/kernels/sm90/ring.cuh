// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <source_location>

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/math.cuh"

// Rings of buffers in shared memory: a writer fills stage after stage, readers hand each back.
namespace magi::sm90 {

/// The place of one use of a ring of kStages buffers: which buffer, and the parity of the phase of
/// `full` that the use completes. One register: 2 * stage + parity.
template <int kStages>
class RingPlace {
 public:
  RingPlace() = default;
  /// The place of use number `count`, for roles that are in several rings by one number. If kStages
  /// is no power of two, counts must not wrap.
  __device__ __forceinline__ explicit RingPlace(std::uint32_t count)
      : value_((count % kStages) << 1 | (count / kStages & 1)) {}

  __device__ __forceinline__ std::uint32_t stage() const { return kStages == 1 ? 0 : value_ >> 1; }
  __device__ __forceinline__ std::uint32_t parity() const {
    return kStages == 1 ? value_ : value_ & 1;
  }

  __device__ __forceinline__ void advance() {
    value_ = stage() == kStages - 1 ? parity() ^ 1 : value_ + 2;
  }
  __device__ __forceinline__ RingPlace next() const {
    RingPlace place = *this;
    place.advance();
    return place;
  }

 private:
  std::uint32_t value_ = 0;
};

/// One barrier per buffer, all completed by the same number of arrivals.
template <int kStages>
struct RingBarriers {
  using Place = RingPlace<kStages>;

  ptx::Mbarrier stages[kStages];

  __device__ __forceinline__ void init(int arrivals) {
    for (ptx::Mbarrier& barrier : stages) ptx::mbarrier_init(barrier, arrivals);
  }
  __device__ __forceinline__ ptx::Mbarrier& at(Place place) { return stages[place.stage()]; }
  /// Waits until the phase of the use has completed.
  __device__ __forceinline__ void wait(
      Place place, const std::source_location& where = std::source_location::current()) {
    ptx::mbarrier_wait(at(place), place.parity(), where);
  }
  /// Whether it has completed, answered at once.
  __device__ __forceinline__ bool test(Place place) {
    return ptx::mbarrier_test(at(place), place.parity());
  }
};

/// `full` is completed by one arrival of the writer plus the bytes it announces, `empty` by one
/// arrival of each reader.
template <int kStages>
struct Ring {
  using Place = RingPlace<kStages>;

  RingBarriers<kStages> full;
  RingBarriers<kStages> empty;

  __device__ __forceinline__ void init(int readers) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(full.stages[stage], 1);
      ptx::mbarrier_init(empty.stages[stage], readers);
    }
  }
  /// The reader's wait.
  __device__ __forceinline__ void wait_full(
      Place place, const std::source_location& where = std::source_location::current()) {
    full.wait(place, where);
  }
  /// The writer's wait, over at once in the first round.
  __device__ __forceinline__ void wait_empty(
      Place place, const std::source_location& where = std::source_location::current()) {
    ptx::mbarrier_wait(empty.at(place), place.parity() ^ 1, where);
  }
};

/// This warp's arrival, after all its lanes are done with what the barrier guards. NOTE: after a
/// branch of one lane ptxas takes the lanes for diverged, loses its uniform registers and spills.
__device__ __forceinline__ void arrive_warp(ptx::Mbarrier& barrier) {
  __syncwarp();
  ptx::mbarrier_arrive_if(barrier, ptx::kArrivalsPerWarp == 32 || threadIdx.x % 32 == 0);
}

}  // namespace magi::sm90
