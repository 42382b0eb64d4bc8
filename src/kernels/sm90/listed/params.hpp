// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

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
  /// Null, or [2]: entries that are no block, and the first's place, 2^64 - 1 before there is one.
  unsigned long long* report = nullptr;
};

/// Sizes of a launch: items are tiles of query heads of one kv head at one query.
struct ListedShape {
  std::int32_t rows_q = 0;
  std::int32_t heads_kv = 0;
  std::int32_t heads_per_kv = 0;
  std::int32_t head_groups = 0;  ///< tiles of query heads of one kv head
  std::int32_t dim_qk = 0;
  std::int32_t dim_v = 0;
  std::int32_t num_items = 0;  ///< rows_q * heads_kv * head_groups
};

/// Arguments of a forward launch under lists, passed by value.
struct ListedForwardParams {
  ListedShape shape;
  StridedRows q;
  StridedRows k;
  StridedRows v;
  ListedIndices lists;
  StridedRows out;  ///< float32, or of the type of q
  StridedRows lse;
  SinkRows sink;
  float* max_logits = nullptr;  ///< [heads_q], holds -inf
  ScoreScale score;
};

/// Arguments of a backward launch under lists, passed by value.
struct ListedBackwardParams {
  ListedShape shape;
  StridedRows q;
  StridedRows k;
  StridedRows v;
  StridedRows dout;  ///< of the type of q
  ListedIndices lists;
  StridedRows lse;
  const float* delta = nullptr;  ///< [rows_q, heads_q]: sum of dout * out, less dlse
  StridedRows dq;                ///< float32, or of the type of q
  /// [rows_k, heads_kv, dim_qk or dim_v], added to; of an instance with parts [rows_q, head_groups,
  /// num_positions, heads_kv, dim], stored where the position has a key.
  float* dk_sums = nullptr;
  float* dv_sums = nullptr;
  ScoreScale score;
};

}  // namespace magi::sm90
