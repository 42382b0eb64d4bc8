// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/forward/config.hpp"
#include "kernels/sm90/listed/params.hpp"

namespace magi::sm90 {

/// Everything that changes registers, shared memory or instructions of a forward under lists.
struct ListedConfig {
  DType type = DType::BFloat16;
  int dim = 128;      ///< head dim of q, k and v on chip; the tensors' is at most this
  int keys = 128;     ///< keys per tile
  int consumers = 2;  ///< warpgroups of 64 query heads
  int stages = 2;     ///< K tiles, and as many V tiles
  int q_stages = 2;   ///< Q of this item and of the next
  int ctas_per_sm = 1;
  int producer_registers = 56;
  bool is_general = false;  ///< softcap and max_logits
  /// A tile has the query heads of several queries, whose lists are joined (joined_lists.hpp).
  bool is_joined = false;
  /// The kernel stores gradients of keys for each position of each list, and a later kernel sums
  /// them by key; else it adds them to sums.
  bool has_parts = false;

  constexpr int rows() const { return 64 * consumers; }
  constexpr int threads() const { return 128 * (consumers + 1); }
  constexpr int q_bytes() const { return rows() * dim * 2; }
  constexpr int tile_bytes() const { return keys * dim * 2; }
  constexpr int keys_per_warp() const { return keys / 4; }  ///< keys that a loading warp copies
  /// Words of a tile's key mask: bits of the keys of each loading warp or, for joined lists, of the
  /// keys that each query sees.
  constexpr int mask_words() const { return is_joined ? kSeenWords : 4; }
  constexpr int consumer_registers() const {
    return (512 / ctas_per_sm - producer_registers) / consumers / 8 * 8;
  }
  /// This config for softmax.cuh and the epilogue, which forwards over slices share.
  constexpr ForwardConfig softmax() const {
    return {.type = type, .features = is_general ? FeatureSet::General : FeatureSet::AnyOut};
  }
};

}  // namespace magi::sm90
