// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_build.cuh"

// A block visits many slices of one tile in the order of their indices. It marks the indices, which
// are in any order, in a bit map, window by window, and reads them back; without indices it looks
// at all slices that may be among them.
namespace magi {

inline constexpr int kEmitThreads = 256;
inline constexpr int kEmitWarps = kEmitThreads / kWarpLanes;
inline constexpr int kWordBits = 32;
inline constexpr int kWordsPerThread = 8;
inline constexpr std::int32_t kWindow = kEmitThreads * kWordsPerThread * kWordBits;

struct SliceOrderShared {
  unsigned words[kEmitThreads * kWordsPerThread];  ///< a bit per slice of the window
  ScanStorage<std::int32_t, kEmitThreads> scan;
};

/// Slice indices at places [begin, end) of `ids`, in any order.
struct IdRun {
  const std::int32_t* ids;
  std::int32_t begin;
  std::int32_t end;
};

/// Marks the slices of [low, low + kWindow).
__device__ __forceinline__ void mark_window(SliceOrderShared& shared, const IdRun& run,
                                            std::int64_t low) {
#pragma unroll 1
  for (int i = 0; i < kWordsPerThread; ++i) shared.words[threadIdx.x + i * kEmitThreads] = 0;
  __syncthreads();
  const std::int32_t first = run.begin + static_cast<std::int32_t>(threadIdx.x);
#pragma unroll 1
  for (std::int32_t i = first; i < run.end; i += kEmitThreads) {
    const std::int64_t bit = run.ids[i] - low;
    if (bit >= 0 && bit < kWindow) {
      atomicOr(&shared.words[bit / kWordBits], 1u << static_cast<unsigned>(bit % kWordBits));
    }
  }
  __syncthreads();
}

/// Calls visit(place, slice) for each slice of `run`, all of which lie in [low, end): places count
/// from run.begin on. All threads of a block of kEmitThreads call.
template <typename Visit>
__device__ __forceinline__ void for_each_in_order(SliceOrderShared& shared, const IdRun& run,
                                                  std::int64_t low, std::int64_t end, Visit visit) {
  const int first_word = static_cast<int>(threadIdx.x) * kWordsPerThread;
  std::int32_t next = run.begin;
#pragma unroll 1
  for (; low < end; low += kWindow) {
    mark_window(shared, run, low);
    std::int32_t count = 0;
#pragma unroll 1
    for (int i = 0; i < kWordsPerThread; ++i) count += __popc(shared.words[first_word + i]);
    const auto scan = scan_block<kEmitThreads>(count, shared.scan);
    std::int32_t place = next + scan.before;
#pragma unroll 1
    for (int i = 0; i < kWordsPerThread; ++i) {
#pragma unroll 1
      for (unsigned left = shared.words[first_word + i]; left != 0; left &= left - 1) {
        const int bit = (first_word + i) * kWordBits + __ffs(static_cast<int>(left)) - 1;
        visit(place++, static_cast<std::int32_t>(low + bit));
      }
    }
    __syncthreads();
    next += scan.total;
  }
}

/// Calls visit(place, part) for each slice of [low, end) whose part_of(slice) is not empty, in
/// order: places count from `next` on. All threads of a block of kEmitThreads call.
template <typename PartOf, typename Visit>
__device__ __forceinline__ void for_each_found(SliceOrderShared& shared, Range slices,
                                               std::int32_t next, PartOf part_of, Visit visit) {
#pragma unroll 1
  for (std::int32_t first = slices.begin; first < slices.end; first += kEmitThreads) {
    const std::int32_t slice = first + static_cast<std::int32_t>(threadIdx.x);
    BandSlice part;
    if (slice < slices.end) part = part_of(slice);
    const bool is_found = part.q0 < part.q1;
    const auto scan = scan_block<kEmitThreads>(is_found ? 1 : 0, shared.scan);
    if (is_found) visit(next + scan.before, part);
    next += scan.total;
  }
}

}  // namespace magi
