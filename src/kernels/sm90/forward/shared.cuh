// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/sm90/arrivals.cuh"
#include "kernels/sm90/forward/config.hpp"
#include "kernels/sm90/ring.cuh"

namespace magi::sm90 {

/// The scheduler's message to the loader and the consumers about one record (or about an item
/// without keys). 64 bytes.
struct alignas(16) RunMessage {
  std::int32_t token_begin = 0;  ///< first token of the q tile
  std::int32_t head_begin = 0;   ///< first head of the q tile
  std::int32_t num_tiles = 0;    ///< full-width k tiles; the short one comes on top
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
  kLastRun = 1,     ///< the item ends with this run
  kShortTile = 2,   ///< a tile of trimmed_keys follows the full-width ones
  kEndOfItems = 4,  ///< there is no item any more
  kFirstRun = 8,    ///< the item begins with this run
  kNewKeys = 16,    ///< the item's keys came only now
};

/// The place where the rows of a Q tile lie and go; stays with the tile, to be read again when out
/// is written.
struct ItemPlace {
  std::int32_t token_begin;
  std::int32_t head_begin;
  std::int32_t partial;  ///< see ItemPart
};

/// The keys that the scheduler's item takes of its tile; here because that thread has few
/// registers.
struct ItemPart {
  std::int32_t k_end;    ///< the first record gives the item only keys below it
  std::int32_t k_begin;  ///< the last record gives the item only keys from it on
  std::int32_t partial;  ///< a split's place among PartialRows; -1: the item is a whole tile
};

/// The scheduler's values of the launch, and the flags that its item waits for. Sources and index
/// are set if the launch waits for keys.
struct ItemWait {
  std::int32_t num_items;    ///< items of the launch
  std::int32_t first_flags;  ///< flags of the item's first run
  std::uint32_t sources;     ///< sources of in-flight keys
  std::int32_t index;        ///< the item's place in the list's order
  ArrivalState arrivals;
};

/// The weights by which a row of accumulators becomes out: out = weight * O + earlier_weight *
/// earlier out.
struct RowWeights {
  float weight;
  float earlier_weight;
};

/// Named barriers and who arrives.
/// | barrier         | arrivals                              | meaning                           |
/// |-----------------|---------------------------------------|-----------------------------------|
/// | kPingpong + w   | warpgroup w waits, its predecessor    | w may issue its products now      |
/// | kEpilogue + w   | warpgroup w                           | its Q rows may be overwritten     |
enum NamedBarrier : int { kPingpong = 1, kEpilogue = 5 };

inline constexpr int kMessageStages = 3;  ///< runs ahead cost balance at the end of a launch

/// Which of `places` belongs to the item whose Q tile is at `queries`.
template <ForwardConfig kC>
__device__ __forceinline__ std::uint32_t place_stage(RingPlace<kC.q_stages> queries) {
  return kC.q_stages == 1 ? queries.parity() : queries.stage();
}

template <ForwardConfig kC>
struct SharedStorage {
  static_assert(kC.kv_stages % 2 == 0);
  static_assert(kC.k_offset(1) % 1024 == 0 && kC.v_offset(1) % 1024 == 0);

  alignas(1024) std::uint8_t q[kC.q_stages][kC.q_stage_bytes()];  ///< later the item's out
  alignas(1024) std::uint8_t kv[kC.kv_bytes()];
  RunMessage messages[kMessageStages];
  RowWeights weights[kC.rows()];  ///< those of the item whose out is written next
  ItemPlace places[kC.q_parts()][kC.place_stages()];
  ItemPart part;
  // Readers: the consumer warps and, of messages, the loader too.
  Ring<kC.q_stages> q_rings[kC.q_parts()];
  Ring<kC.kv_stages> kv_ring;
  Ring<kMessageStages> message_ring;
  ItemWait wait;
};

}  // namespace magi::sm90
