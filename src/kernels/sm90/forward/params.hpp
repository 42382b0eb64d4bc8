// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/schedule/host/forward_list.hpp"
#include "kernels/sm90/arguments.hpp"

namespace magi::sm90 {

/// Results of the splits of split tiles, item by item: rows of the tile, normalised.
struct PartialRows {
  float* out = nullptr;  ///< [items, rows of a tile, dim_v]
  float* lse = nullptr;  ///< [items, rows of a tile]
};

/// Items whose keys had not come while a launch ran, for a launch behind it.
struct Deferred {
  std::int32_t* items = nullptr;  ///< their places in the list's order, by the time they were left
  unsigned* count = nullptr;      ///< 0 between runs
  unsigned* num_ended = nullptr;  ///< CTAs of the launch that works at them; 0 between runs
};

/// Which lists made on the device a launch is for.
enum class WantedList : std::int32_t { Any, WithSplits, WithoutSplits };

/// Arguments of a launch, passed by value. The list's fields mirror ForwardList.
struct ForwardParams {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
  CUtensorMap out;  ///< unused where out_float has data

  const TileWork* tiles = nullptr;
  const BandRecord* records = nullptr;
  unsigned* ticket = nullptr;  ///< counts handed-out items; 0 between launches
  /// The values that the host does not know of a list made on the device: a launch for other packed
  /// heads or other lists does nothing, num_works is the outcome's. Null where the host knows.
  const ListOutcome* outcome = nullptr;
  WantedList wanted = WantedList::Any;
  std::int32_t num_works = 0;
  std::int32_t head_groups = 0;
  std::int32_t groups_per_section = 0;
  std::int32_t tile_tokens = 0;
  std::int32_t packed_heads = 1;
  std::int32_t packed_shift = 0;  ///< log2(packed_heads)
  std::int32_t heads_per_kv = 1;
  std::int32_t rows_q = 0;
  std::int32_t dim_v = 0;

  ScoreScale score;
  StridedRows lse;        ///< float32 [rows, heads]
  StridedRows out_float;  ///< has data where out is float32
  StridedRows out_half;   ///< has data where it is not
  bool is_merging = false;
  SinkRows sink;
  float* max_logits = nullptr;  ///< [heads_q], holds -inf or an earlier result
  PartialRows partial;          ///< has data where the list has splits

  std::int32_t num_in_flight_works = 0;
  std::int32_t in_flight_groups_per_section = 0;
  ArrivalFlags arrivals;
  std::int32_t heads_per_arrival_chunk = 1;  ///< query heads whose keys come together
  bool is_for_deferred = false;              ///< the launch works at `deferred` alone
  bool is_beside = false;  ///< of the kernel before it only the end is awaited, at its own end
  Deferred deferred;

  /// Keys [0, own_rows) are loaded from these, key own_rows is row 0 of k and v.
  CUtensorMap own_k;
  CUtensorMap own_v;
  std::int32_t own_rows = 0;
  /// V, and V of own keys, in windows of half a tile: for tiles that hold keys beside the run's.
  CUtensorMap v_window;
  CUtensorMap own_v_window;

  /// Q, K and V by address, for kernels that take no descriptors.
  StridedRows q_rows;
  StridedRows k_rows;
  StridedRows v_rows;
  std::int32_t dim_qk = 0;  ///< likewise
};

}  // namespace magi::sm90
