// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/barrier.cuh"
#include "kernels/sm90/forward/config.hpp"

namespace magi::sm90 {

/// What the scheduler tells the loader and the consumers of one record (or of an item without
/// keys). 64 bytes.
struct alignas(16) RunMessage {
  std::int32_t token_begin = 0;  ///< of the q tile
  std::int32_t head_begin = 0;   ///< of the q tile
  std::int32_t num_tiles = 0;    ///< full-width tiles; the short one comes on top
  std::int32_t flags = 0;
  std::int32_t k_end = 0;
  std::int32_t full_begin = 0;
  std::int32_t full_end = 0;
  std::int32_t partial = -1;  ///< see ItemPart
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
  kFirstRun = 8,    ///< of its item
  kShortTile = 2,   ///< a tile of kTrimmedKeys follows the full-width ones
  kEndOfItems = 4,  ///< no item
};

/// Where the rows of a Q tile lie and go; stays with the tile, to be read again when out is
/// written.
struct ItemPlace {
  std::int32_t token_begin;
  std::int32_t head_begin;
  std::int32_t partial;  ///< see ItemPart
};

/// What the scheduler's item has of its tile. Its thread has few registers.
struct ItemPart {
  std::int32_t k_end;    ///< of the first record only keys below it are the item's
  std::int32_t k_begin;  ///< of the last record only keys from it on
  std::int32_t partial;  ///< of a piece: its place among PartialRows; -1: a whole tile
};

/// What becomes of a row of accumulators: out = weight * O + earlier_weight * earlier out.
struct RowWeights {
  float weight;
  float earlier_weight;
};

/// Named barriers and who arrives.
/// | barrier         | arrivals                              | meaning                           |
/// |-----------------|---------------------------------------|-----------------------------------|
/// | kTurn + w       | warpgroup w waits, its predecessor    | w may issue its products now      |
/// | kEpilogue + w   | warpgroup w                           | its Q rows may be overwritten     |
enum NamedBarrier : int { kTurn = 1, kEpilogue = 5 };

inline constexpr int kMessageStages = 3;  ///< runs ahead cost balance at the end of a launch

/// mbarriers: `full` is completed by one arrival plus the bytes it announces; `empty` by one
/// arrival of each reader: the consumer warps and, for messages, the loader.
template <int kStages>
struct Ring {
  ptx::Mbarrier full[kStages];
  ptx::Mbarrier empty[kStages];
};

template <ForwardConfig kC>
struct SharedStorage {
  alignas(1024) std::uint8_t q[kC.q_stages][kC.q_stage_bytes()];  ///< later the item's out
  alignas(1024) std::uint8_t kv[kC.kv_stages][kC.kv_stage_bytes()];
  RunMessage messages[kMessageStages];
  RowWeights weights[kC.rows()];  ///< of the item whose out is written next
  ItemPlace places[kC.q_stages];
  ItemPart part;
  Ring<kC.q_stages> q_ring;
  Ring<kC.kv_stages> kv_ring;
  Ring<kMessageStages> message_ring;
};

/// Where a role is in a ring; runs on across items. One register: 2 * stage + parity.
template <int kStages>
class RingPlace {
 public:
  __device__ __forceinline__ std::uint32_t stage() const { return value_ >> 1; }
  /// Of the phase of `full` that completes next.
  __device__ __forceinline__ std::uint32_t parity() const { return value_ & 1; }

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

template <int kStages>
__device__ __forceinline__ void init_ring(Ring<kStages>& ring, int readers) {
  for (int stage = 0; stage < kStages; ++stage) {
    ptx::mbarrier_init(ring.full[stage], 1);
    ptx::mbarrier_init(ring.empty[stage], readers);
  }
}

}  // namespace magi::sm90
