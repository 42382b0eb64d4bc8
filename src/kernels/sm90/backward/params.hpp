// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/sm90/arguments.hpp"
#include "kernels/worklist/backward_list.hpp"

namespace magi::sm90 {

/// An output [rows, heads, dim], strides in elements.
struct GradientRows {
  void* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  bool is_float = false;  ///< float32, else the type of q
  bool is_added = false;  ///< to what is there
};

/// Arguments of a launch, passed by value. The list's fields mirror BackwardList.
struct BackwardParams {
  CUtensorMap q;     ///< box of packed_heads x tile_tokens
  CUtensorMap dout;  ///< likewise
  CUtensorMap k;     ///< box of 1 x keys of a k tile
  CUtensorMap v;     ///< likewise

  const KeyTile* tiles = nullptr;
  const KeyRecord* records = nullptr;
  const SemaphoreRun* turns = nullptr;
  const std::int32_t* islands = nullptr;

  /// All zero at the start; see BackwardList::num_counters.
  unsigned* turn_counts = nullptr;   ///< [head groups, num_turns]
  unsigned* piece_counts = nullptr;  ///< [kv heads, tiles, 2]
  unsigned* ticket = nullptr;

  /// Sums are indexed head_group * num_q_tiles + q_tile. Rows of a sum: token * packed_heads +
  /// head; rows without keys or beyond the tensor have kNoKeys for the first, 0 for the other.
  const float* levels = nullptr;   ///< [sums, rows]: -lse * log2(e) / exponent_scale
  const float* offsets = nullptr;  ///< [sums, rows]: dlse - rowsum(dO * O)
  float* dq_sums = nullptr;  ///< [sums, rows * dim_qk], order of dq_place; zero at the start where
                             ///< several islands meet, and everywhere if sums are
                             ///< unordered
  float* pieces = nullptr;   ///< [slots]: dK [128, dim_qk], then dV [128, dim_v]

  std::int32_t num_items = 0;
  std::int32_t num_tiles = 0;
  std::int32_t num_turns = 0;
  std::int32_t num_q_tiles = 0;
  std::int32_t token_shift = 6;  ///< log2(tile_tokens)
  std::int32_t packed_heads = 1;
  std::int32_t packed_shift = 0;  ///< log2(packed_heads)
  std::int32_t heads_q = 1;
  std::int32_t heads_kv = 1;
  std::int32_t rows_q = 0;
  std::int32_t dim_qk = 0;
  std::int32_t dim_v = 0;

  ScoreScale score;
  GradientRows dq;
  GradientRows dk;
  GradientRows dv;
  bool is_ordered = true;  ///< sums of dQ are taken in the order of the list
  /// An item walks all q tiles of a head group before those of the next; else the groups of a q
  /// tile one after the other.
  bool is_group_first = false;

  /// Behind what every step reads, which should lie together.
  TileSpan spans[kMaxSpans];
  bool is_finishing = false;  ///< dq is written by whoever adds last
  /// q tiles that are left to finish.cuh where the others are not.
  const std::int32_t* left_tiles = nullptr;
  std::int32_t num_left = 0;
  std::int64_t dq_to_row_16 = 0;  ///< bytes from row r of a q tile to row r + 16, in dq
  std::int64_t dq_to_row_8 = 0;   ///< from row 16n to row 16n + 8
};

}  // namespace magi::sm90
