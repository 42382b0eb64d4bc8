// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/listed/shared.cuh"
#include "kernels/tile/descriptor.cuh"

namespace magi::sm90 {

/// Named barriers of all consumers: the scores of the tile before have been read, if there is one
/// buffer; the scores have been stored.
enum ListedBackwardBarrier : int { kScoresRead = 1, kScoresStaged = 2 };

template <ListedConfig kC>
struct ListedBackwardStorage {
  static_assert(kC.keys == tile::kPanelElements && kC.q_stages == 1);

  alignas(1024) std::uint8_t q[kC.q_bytes()];
  alignas(1024) std::uint8_t dout[kC.q_bytes()];
  alignas(1024) std::uint8_t k[kC.stages][kC.tile_bytes()];
  alignas(1024) std::uint8_t v[kC.stages][kC.tile_bytes()];
  /// P and dS of a tile in 16 bits, a row for each query head. There are two buffers for two
  /// consumers, as each may be a tile ahead of the other.
  static constexpr int kScoreStages = kC.consumers;
  alignas(1024) std::uint8_t p[kScoreStages][kC.rows() * tile::kPanelRowBytes];
  alignas(1024) std::uint8_t ds[kScoreStages][kC.rows() * tile::kPanelRowBytes];
  alignas(16) std::uint32_t is_key[kC.stages][kC.mask_words()];  ///< as in ListedStorage
  std::int32_t keys[kC.stages][kC.keys];                         ///< or kNoKey
  std::int32_t num_tiles;
  GatherRing<1> q_ring;  ///< Q and dO
  GatherRing<kC.stages> k_ring;
  GatherRing<kC.stages> v_ring;
};

}  // namespace magi::sm90
