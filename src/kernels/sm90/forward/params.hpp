// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/sm90/arguments.hpp"
#include "kernels/worklist/forward_list.hpp"

namespace magi::sm90 {

/// Arguments of a launch, passed by value. The list's fields mirror ForwardList.
struct ForwardParams {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
  CUtensorMap out;  ///< unused where out_float has data

  const TileWork* tiles = nullptr;
  const BandRecord* records = nullptr;
  unsigned* ticket = nullptr;  ///< counts handed-out items; 0 between launches
  /// Packed heads that a list made on the device is for: a launch for others does nothing. Null
  /// where the host knows.
  const std::int32_t* chosen_heads = nullptr;
  std::int32_t num_items = 0;
  std::int32_t num_tiles = 0;
  std::int32_t head_groups = 0;
  std::int32_t groups_per_section = 0;
  std::int32_t tile_tokens = 0;
  std::int32_t packed_heads = 1;
  std::int32_t packed_shift = 0;  ///< log2(packed_heads)
  std::int32_t heads_per_kv = 1;
  std::int32_t rows_q = 0;
  std::int32_t rows_k = 0;
  std::int32_t dim_v = 0;

  ScoreScale score;
  FloatRows lse;
  FloatRows out_float;  ///< data: out is float32
  bool is_merging = false;
  SinkRows sink;
  float* max_logits = nullptr;  ///< [heads_q], holds -inf or an earlier result
};

}  // namespace magi::sm90
