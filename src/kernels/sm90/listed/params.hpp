// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "kernels/sm90/arguments.hpp"

namespace magi::sm90 {

/// The lists of a call as kernels read them; strides in elements. Position p of a list is key p %
/// block_keys of the block that entry p / block_keys names.
struct ListedIndices {
  const std::int32_t* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t entry_stride = 0;
  std::int32_t entries = 0;
  std::int32_t num_positions = 0;
  std::int32_t block_keys = 1;
  std::int32_t num_blocks = 0;
  std::int32_t rows_k = 0;
  /// Null, or [2]: the number of entries that name no block, and the place of the first of them,
  /// 2^64 - 1 if there is none.
  unsigned long long* report = nullptr;
};

inline constexpr int kMostJoined = 8;               ///< queries whose lists are joined
inline constexpr int kJoinedTile = 64;              ///< keys
inline constexpr int kSeenWords = 2 * kMostJoined;  ///< mask words of such a tile

/// Lists of tiles of neighbouring queries, each the union of its queries' lists.
struct JoinedLists {
  std::int32_t* keys = nullptr;       ///< [query tiles, kv heads, max_keys]; kNoKey: no key
  std::uint32_t* seen = nullptr;      ///< [query tiles, kv heads, max_keys / 64, kMostJoined, 2]:
                                      ///< a bit for each of 64 keys: whether a query sees it
  std::int32_t* num_tiles = nullptr;  ///< [query tiles, kv heads]: tiles of 64 keys
  std::int32_t max_keys = 0;          ///< a multiple of 64

  MAGI_HOST_DEVICE std::int64_t seen_words() const {
    return std::int64_t{max_keys} / kJoinedTile * kSeenWords;
  }
};

/// Sizes of a launch. An item is a tile of query heads of one kv head: some of them at one query,
/// or all of them at several.
struct ListedShape {
  std::int32_t rows_q = 0;
  std::int32_t queries = 1;      ///< queries of a tile
  std::int32_t query_tiles = 0;  ///< rows_q / queries, rounded up
  std::int32_t heads_kv = 0;
  std::int32_t heads_per_kv = 0;
  std::int32_t head_groups = 0;  ///< tiles of query heads of one kv head
  std::int32_t dim_qk = 0;
  std::int32_t dim_v = 0;
  std::int32_t num_items = 0;  ///< query_tiles * heads_kv * head_groups
};

/// Arguments of a forward launch under lists, passed by value.
struct ListedForwardParams {
  ListedShape shape;
  StridedRows q;
  StridedRows k;
  StridedRows v;
  ListedIndices lists;
  JoinedLists joined;  ///< replaces `lists` in instances for joined lists
  StridedRows out;     ///< float32 or the type of q
  StridedRows lse;
  SinkRows sink;
  float* max_logits = nullptr;  ///< [heads_q], -inf at the start
  ScoreScale score;
};

/// Arguments of a backward launch under lists, passed by value.
struct ListedBackwardParams {
  ListedShape shape;
  StridedRows q;
  StridedRows k;
  StridedRows v;
  StridedRows dout;  ///< the type of q
  ListedIndices lists;
  JoinedLists joined;  ///< see ListedForwardParams
  StridedRows lse;
  const float* delta = nullptr;  ///< [rows_q, heads_q]: sum of dout * out, less dlse
  StridedRows dq;                ///< float32 or the type of q
  /// [rows_k, heads_kv, dim_qk or dim_v], added to; in instances with parts [rows_q, head_groups,
  /// num_positions, heads_kv, dim], stored for positions that have a key.
  float* dk_sums = nullptr;
  float* dv_sums = nullptr;
  ScoreScale score;
};

}  // namespace magi::sm90
