// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/sm90/listed/config.hpp"
#include "kernels/sm90/listed/params.hpp"
#include "kernels/sm90/ring.cuh"

namespace magi::sm90 {

inline constexpr int kLoadingWarps = 4;

/// A tile of query heads of one or several queries. A kv head's items are neighbours: keys stay in
/// L2.
struct ListedItem {
  std::int32_t row;  ///< the first query
  std::int32_t kv_head;
  std::int32_t group;

  __device__ __forceinline__ ListedItem(const ListedShape& shape, std::int32_t index) {
    const std::int32_t per_head = shape.query_tiles * shape.head_groups;
    kv_head = index / per_head;
    const std::int32_t rest = index - kv_head * per_head;
    const std::int32_t tile = rest / shape.head_groups;
    group = rest - tile * shape.head_groups;
    row = tile * shape.queries;
  }
};

/// Buffers that all loading warps fill by copies of 16 bytes, and consumer warps release.
template <int kStages>
struct GatherRing : Ring<kStages> {
  __device__ __forceinline__ void init(int consumers) {
    // Arrivals: one of each loading thread for its copies, one of each loading warp for its stores.
    this->full.init(128 + kLoadingWarps * ptx::kArrivalsPerWarp);
    this->empty.init(4 * consumers * ptx::kArrivalsPerWarp);
  }
};

/// Named barriers. At kListedPingpong + w warpgroup w waits until the other lets it issue products.
enum ListedBarrier : int { kListedPingpong = 1 };

template <ListedConfig kC>
struct ListedStorage {
  alignas(1024) std::uint8_t q[kC.q_stages][kC.q_bytes()];
  alignas(1024) std::uint8_t k[kC.stages][kC.tile_bytes()];
  alignas(1024) std::uint8_t v[kC.stages][kC.tile_bytes()];
  alignas(16) std::uint32_t is_key[kC.stages][kC.mask_words()];  ///< of K tiles
  std::int32_t num_tiles[kC.q_stages];                           ///< tiles of the item of this Q
  GatherRing<kC.q_stages> q_ring;
  GatherRing<kC.stages> k_ring;
  GatherRing<kC.stages> v_ring;
};

}  // namespace magi::sm90
