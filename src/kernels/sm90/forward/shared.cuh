// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/barrier.cuh"
#include "kernels/sm90/forward/config.hpp"

namespace magi::sm90 {

/// What the producer tells the consumers of one record (or of an item without keys). 64 bytes.
struct alignas(16) RunMessage {
  std::int32_t token_begin = 0;  ///< of the q tile
  std::int32_t head_begin = 0;   ///< of the q tile
  std::int32_t num_tiles = 0;    ///< full-width tiles; the short one comes on top
  std::int32_t flags = 0;
  std::int32_t k_end = 0;
  std::int32_t full_begin = 0;
  std::int32_t full_end = 0;
  std::int32_t reserved = 0;
  std::int32_t q0 = 0;
  std::int32_t q1 = 0;
  std::int32_t k0 = 0;
  std::int32_t k1 = 0;
  std::int32_t d_min = 0;
  std::int32_t d_max = 0;
  std::int32_t padding[2] = {0, 0};
};
static_assert(sizeof(RunMessage) == 64);

enum RunFlag : std::int32_t {
  kLastRun = 1,     ///< of its item
  kShortTile = 2,   ///< a tile of kTrimmedKeys follows the full-width ones
  kEndOfItems = 4,  ///< no item
};

/// Named barriers and who arrives.
/// | barrier         | arrivals                              | meaning                           |
/// |-----------------|---------------------------------------|-----------------------------------|
/// | kTurn + w       | warpgroup w waits, its predecessor    | w may issue its products now      |
/// | kEpilogue + w   | warpgroup w                           | its Q rows may be overwritten     |
enum NamedBarrier : int { kTurn = 1, kEpilogue = 5 };

inline constexpr int kMessageStages = 4;

/// mbarriers: `full` is completed by the producer's arrival plus the bytes it announces; `empty` by
/// one arrival of each consumer warp.
template <int kStages>
struct Ring {
  ptx::Mbarrier full[kStages];
  ptx::Mbarrier empty[kStages];
};

template <ForwardConfig kC>
struct SharedStorage {
  alignas(1024) std::uint8_t q[kC.q_stages][kC.q_bytes()];  ///< later the item's out
  alignas(1024) std::uint8_t k[kC.kv_stages][kC.kv_bytes()];
  alignas(1024) std::uint8_t v[kC.kv_stages][kC.kv_bytes()];
  RunMessage messages[kMessageStages];
  Ring<kC.q_stages> q_ring;
  Ring<kC.kv_stages> k_ring;
  Ring<kC.kv_stages> v_ring;
  Ring<kMessageStages> message_ring;
};

/// Stage and parity of use number `count` of a ring; counts run on across items.
template <int kStages>
__device__ __forceinline__ int stage_of(std::uint32_t count) {
  return static_cast<int>(count % kStages);
}
template <int kStages>
__device__ __forceinline__ std::uint32_t parity_of(std::uint32_t count) {
  return (count / kStages) & 1;
}

template <int kStages>
__device__ __forceinline__ void init_ring(Ring<kStages>& ring, int consumer_warps) {
  for (int stage = 0; stage < kStages; ++stage) {
    ptx::mbarrier_init(ring.full[stage], 1);
    ptx::mbarrier_init(ring.empty[stage], consumer_warps);
  }
}

}  // namespace magi::sm90
