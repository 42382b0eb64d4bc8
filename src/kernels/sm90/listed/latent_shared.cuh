// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/cluster.cuh"
#include "kernels/sm90/listed/latent.hpp"
#include "kernels/sm90/listed/shared.cuh"
#include "kernels/tile/descriptor.cuh"

// Shared memory of kernels whose keys are latents: rows of 576 elements in nine panels, of which
// the first eight are also the value.
namespace magi::sm90 {

inline constexpr int kLatentRows = 64;  ///< query heads of an item, and keys of a tile
inline constexpr int kLatentPanelBytes = kLatentRows * tile::kPanelRowBytes;
inline constexpr int kLatentPanels = kLatentDim / tile::kPanelElements;
inline constexpr int kValuePanels = kLatentValueDim / tile::kPanelElements;
inline constexpr int kHalfPanels = kValuePanels / 2;  ///< panels of a warpgroup's value columns
inline constexpr int kHalfColumns = kLatentValueDim / 2;
inline constexpr int kLatentConsumers = 2;
inline constexpr int kLatentThreads = 128 * (kLatentConsumers + 1);
inline constexpr int kLatentKeysPerWarp = kLatentRows / kLoadingWarps;

/// Registers per thread. The sum over three warpgroups is at most 504.
struct LatentRegisters {
  int producer;
  int consumer;
};
inline constexpr LatentRegisters kLatentForwardRegisters{72, 216};
inline constexpr LatentRegisters kLatentBackwardRegisters{56, 224};

/// Named barriers of consumers.
enum LatentBarrier : int {
  kLatentPublished = 1,  ///< + warpgroup: its P is published; it arrives, the other waits
  kLatentSums = 3,       ///< both arrive: sums of an item are stored
  kLatentWeights = 4,    ///< P is stored: the first arrives, the second waits
  kLatentStaged = 5,     ///< dS is stored: the second arrives, the first waits
  kLatentRead = 6,       ///< P and dS have been read: the second arrives, the first waits
};

/// Whether a CTA and its neighbour, a cluster of two, have heads of one query. Then they run in
/// step: both add to rows of the same keys, which are in L2 after the first addition.
__device__ __forceinline__ bool has_peer(const ListedShape& shape) {
  return shape.head_groups % 2 == 0 && gridDim.x % 2 == 0;
}

/// Tiles of keys. Loaders fill each in two parts, so that products begin with the first.
template <int kStages>
struct LatentRing {
  using Place = RingPlace<kStages>;

  RingBarriers<kStages> full[2];
  RingBarriers<kStages> empty;

  __device__ __forceinline__ void init() {
    for (RingBarriers<kStages>& part : full) part.init(128 + kLoadingWarps * ptx::kArrivalsPerWarp);
    empty.init(4 * kLatentConsumers * ptx::kArrivalsPerWarp);
  }
  /// Waits for the buffer, in a loader; returns at once in the first round.
  __device__ __forceinline__ void wait_empty(Place place) {
    ptx::mbarrier_wait(empty.at(place), place.parity() ^ 1);
  }
};

/// Tiles of keys, and masks of their rows that hold a key.
template <int kStages>
struct LatentTiles {
  alignas(1024) std::uint8_t rows[kStages][kLatentPanels * kLatentPanelBytes];
  alignas(16) std::uint32_t is_key[kStages][kLoadingWarps];  ///< as in ListedStorage
  LatentRing<kStages> ring;
};

struct LatentStorage {
  static constexpr int kStages = 2;
  alignas(1024) std::uint8_t q[kLatentPanels * kLatentPanelBytes];
  /// P of a tile's scores overwrites its last panel.
  LatentTiles<kStages> tiles;
  float base[kStages][kLatentRows];             ///< base of the exponentials after a tile
  float sum[2][kLatentConsumers][kLatentRows];  ///< sums of two items in turn
  std::int32_t num_tiles;
  GatherRing<1> q_ring;
};

struct LatentBackwardStorage {
  static constexpr int kStages = 1;
  alignas(1024) std::uint8_t q[kLatentPanels * kLatentPanelBytes];
  alignas(1024) std::uint8_t dout[kValuePanels * kLatentPanelBytes];
  LatentTiles<kStages> tiles;
  alignas(1024) std::uint8_t p[kLatentPanelBytes];  ///< a row for each query head, like ds
  alignas(1024) std::uint8_t ds[kLatentPanelBytes];
  std::int32_t keys[kStages][kLatentRows];  ///< rows of the gradients, or kNoKey
  std::int32_t num_tiles;
  GatherRing<1> q_ring;   ///< Q and dO
  RingBarriers<2> peers;  ///< the peer begins an item; two in turn, as it may be one item ahead
};

}  // namespace magi::sm90
