// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_build.cuh"

// The whole device sorts few keys in two launches: blocks sort chunks by comparing all keys of a
// chunk, then look each key up in every chunk. A cluster that sorts by digits would wait at several
// barriers for each digit. All keys differ.
namespace magi {

inline constexpr std::int32_t kChunkKeys = 64;  ///< a power of two; threads of a block that sorts
inline constexpr int kRankThreads = 1024;

/// Sorts one key of each of kChunkKeys threads and writes the `count` smallest of them.
template <typename Key>
__device__ __forceinline__ void sort_chunk(Key (&chunk)[kChunkKeys], const Key& own,
                                           std::int32_t count, Key* sorted) {
  chunk[threadIdx.x] = own;
  __syncthreads();
  std::int32_t place = 0;
#pragma unroll 16
  for (std::int32_t i = 0; i < kChunkKeys; ++i) place += chunk[i] < own ? 1 : 0;
  if (static_cast<std::int32_t>(threadIdx.x) < count) sorted[place] = own;
}

/// Counts the keys of a chunk, from `keys` on, that are smaller than a key.
template <typename Key>
__device__ __forceinline__ std::int32_t count_smaller(const Key* keys, std::int32_t size,
                                                      const Key& key) {
  std::int32_t found = 0;
#pragma unroll
  for (std::int32_t step = kChunkKeys; step > 0; step /= 2) {
    if (found + step <= size && keys[found + step - 1] < key) found += step;
  }
  return found;
}

/// Compares kOwnKeys keys of a block, each by many threads, with all `count` keys in any order. For
/// few keys, as it spares the chunks. The rest as rank_keys.
template <std::int32_t kOwnKeys, typename Key, typename Visit>
__device__ __forceinline__ void rank_few_keys(const Key* keys, std::int32_t count, Key* room,
                                              std::int32_t (&places)[kOwnKeys], Visit visit) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * kOwnKeys;
  if (first >= count) return;
#pragma unroll 4
  for (std::int32_t i = thread; i < count; i += kRankThreads) room[i] = keys[i];
  if (thread < kOwnKeys) places[thread] = 0;
  __syncthreads();
  const std::int32_t own = first + thread % kOwnKeys;
  if (own < count) {
    const Key key = room[own];
    std::int32_t smaller = 0;
#pragma unroll 8
    for (std::int32_t i = thread / kOwnKeys; i < count; i += kRankThreads / kOwnKeys) {
      smaller += room[i] < key ? 1 : 0;
    }
    atomicAdd(&places[thread % kOwnKeys], smaller);
  }
  __syncthreads();
  if (thread < kOwnKeys && own < count) visit(room[own], places[thread]);
}

/// Looks up kOwnKeys keys of a block, each by many threads, among all `count` keys, which lie in
/// sorted chunks, and calls visit(key, how many are smaller) for each.
/// `room` in shared memory holds all keys, or without room they are read where they lie; `places`
/// holds kOwnKeys numbers. All kRankThreads threads call.
template <bool kHasRoom, std::int32_t kOwnKeys, typename Key, typename Visit>
__device__ __forceinline__ void rank_keys(const Key* chunks, std::int32_t count, Key* room,
                                          std::int32_t (&places)[kOwnKeys], Visit visit) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * kOwnKeys;
  if (first >= count) return;
  if constexpr (kHasRoom) {
#pragma unroll 4
    for (std::int32_t i = thread; i < count; i += kRankThreads) room[i] = chunks[i];
  }
  const Key* const keys = kHasRoom ? room : chunks;
  if (thread < kOwnKeys) places[thread] = 0;
  __syncthreads();
  const std::int32_t own = first + thread % kOwnKeys;
  if (own < count) {
    // The lanes of a warp look up keys that are neighbours in their chunk, so most read the same.
    std::int32_t smaller = 0;
    constexpr std::int32_t kStride = kRankThreads / kOwnKeys * kChunkKeys;
#pragma unroll 2
    for (std::int32_t begin = thread / kOwnKeys * kChunkKeys; begin < count; begin += kStride) {
      smaller += count_smaller(keys + begin, min(count - begin, kChunkKeys), keys[own]);
    }
    atomicAdd(&places[thread % kOwnKeys], smaller);
  }
  __syncthreads();
  if (thread < kOwnKeys && own < count) visit(keys[own], places[thread]);
}

}  // namespace magi
