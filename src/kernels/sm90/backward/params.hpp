// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/host_device.hpp"
#include "kernels/schedule/host/backward_list.hpp"
#include "kernels/sm90/arguments.hpp"

namespace magi::sm90 {

/// The query rows and how heads are packed into q tiles. Every role reads it.
struct QueryTiles {
  std::int32_t num_q_tiles = 0;
  std::int32_t token_shift = 6;  ///< log2(tokens of a q tile)
  std::int32_t packed_heads = 1;
  std::int32_t packed_shift = 0;  ///< log2(packed_heads)
  std::int32_t heads_q = 1;
  std::int32_t rows_q = 0;
};

/// The numbers that turn products into P and dS. The producer loads both vectors, the consumers
/// compute with them. A row of a sum is token * packed_heads + head; rows without keys or beyond
/// the tensor have kNoKeys for the lse and 0 for the delta.
struct BackwardSoftmax {
  const float* lse_log2 = nullptr;  ///< [sums, rows], negated: -lse * log2(e) / exponent_scale
  const float* delta = nullptr;     ///< [sums, rows], negated: dlse - rowsum(dO * O)
  ScoreScale score;
};

/// The order in which records add to a sum of dQ. The semaphore roles read it.
struct DqOrder {
  const SemaphoreRun* runs = nullptr;            ///< semaphore values by record and q tile
  const std::int32_t* num_components = nullptr;  ///< [q tiles]
  unsigned* semaphores = nullptr;  ///< [head groups, num_semaphores], all zero at the start
  std::int32_t num_semaphores = 0;
  bool is_ordered = true;      ///< additions to dQ sums follow the order of the list
  bool is_converting = false;  ///< the main kernel converts the sums that it completes into dq
};

/// Sums of dQ, indexed head_group * num_q_tiles + q_tile, and the rows of dq. Consumers add to the
/// sums; the dQ converter and dq_convert_kernel read all members.
struct DqOutput {
  /// [sums, rows * dim_qk] in the order of dq_place. Zero at the start: sums of q tiles with
  /// several components, and all sums if additions have no order.
  float* sums = nullptr;
  StridedRows rows;
  std::int32_t dim = 0;              ///< columns of dq
  bool is_adding = false;            ///< dq is added to what is there
  std::int64_t bytes_to_row_8 = 0;   ///< from row 16n of a q tile to row 16n + 8, in dq
  std::int64_t bytes_to_row_16 = 0;  ///< from row r of a q tile to row r + 16, in dq
  /// q tiles whose sums dq_convert_kernel converts, if the main kernel converts the others.
  const std::int32_t* left_tiles = nullptr;
  std::int32_t num_left = 0;
  /// [q tiles], 1: the main kernel converts the sums; null unless the device makes the list.
  const std::int32_t* converted_tiles = nullptr;
};

/// Rows of a gradient at their own address, by kv head. Strides are multiples of 16 bytes.
struct GradientRows {
  std::uint8_t* data = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t head_bytes = 0;
  bool is_float = false;  ///< else of the input's 16-bit type
};

/// The place, such as memory of another GPU, where dK and dV of keys [row_begin, row_end) go.
struct KeyDestination {
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  GradientRows dk;
  GradientRows dv;
};

/// The places where dK and dV go. The epilogue reads it.
struct KeyGradients {
  StridedRows dk;
  StridedRows dv;
  std::int32_t dim_qk = 0;               ///< columns of dk
  std::int32_t dim_v = 0;                ///< columns of dv
  bool is_adding = false;                ///< both are added to what is there
  float* split_sums = nullptr;           ///< [slots]: dK [keys, dim_qk], then dV [keys, dim_v]
  unsigned* split_semaphores = nullptr;  ///< [kv heads, tiles, 2], all zero at the start
  /// Destinations of all keys, ascending; null: all go to dk and dv. Rows there are overwritten.
  const KeyDestination* destinations = nullptr;
};

/// The items; mirrors BackwardList. The producer reads it, records also the semaphore waiter.
struct BackwardItems {
  /// An item walks all q tiles of a head group before those of the next group; else all groups of a
  /// q tile before the next q tile. NOTE: the field fills eight bytes: if one load fetches it with
  /// a neighbour, ptxas spills in the consumers' step.
  bool is_group_first = false;
  const KeyTile* tiles = nullptr;
  const KeyRecord* records = nullptr;
  unsigned* ticket = nullptr;  ///< counts handed-out items; zero at the start
  std::int32_t num_items = 0;
  std::int32_t num_tiles = 0;
  std::int32_t heads_kv = 1;
  TileSpan spans[kMaxSpans];
  /// The values of a list made on the device that the host does not know, and the items' places in
  /// the spans, in the order in which items are handed out. Null if the host made the list.
  const BackwardOutcome* outcome = nullptr;
  const std::int32_t* order = nullptr;
  /// If each kv head has its own list, one after the other, as under masks of blocks: the k tiles
  /// of a list, and the records for which it has room. 0: there is one list. Of the kernels, only
  /// those with OwnRows read both.
  std::int32_t tiles_per_list = 0;
  std::int32_t records_per_list = 0;
};

/// The keys that items wait for, and the items that were deferred because their keys had not
/// arrived. The producer reads it.
struct InFlightItems {
  ArrivalFlags flags;  ///< without flags: nothing is waited for
  std::int32_t heads_per_section = 1;
  bool is_for_deferred = false;         ///< the launch runs the deferred items only
  const TileArrival* tiles = nullptr;   ///< [k tiles]; null: no keys are in flight
  unsigned* decisions = nullptr;        ///< [kv heads, tiles] of split k tiles, zero at the start
  unsigned* num_deferred = nullptr;     ///< zero at the start
  unsigned* deferred_ticket = nullptr;  ///< ticket of their launch; zero at the start
  unsigned* deferred_words = nullptr;   ///< a bit for each item, zero at the start
};

/// The semaphore values at which sums of dQ are complete. dq_convert_kernel reads it, and the
/// producer of the main kernel.
struct DqCompletion {
  const TileSemaphores* tiles = nullptr;  ///< [q tiles]; null: complete when the main kernel ends
  std::int32_t num_adders = 1;            ///< CTAs that add to a sum for one record
  /// The next kernel starts on each multiprocessor that the main kernel leaves.
  bool is_next_beside = false;
};

/// Copy descriptors of parts of a tile, for tiles with rows that nobody sees.
struct TilePieces {
  CUtensorMap maps[2];  ///< boxes of packed_heads x unit_tokens, and of packed_heads x 1
};

/// Tokens of 8 packed rows, at least one.
MAGI_HOST_DEVICE std::int32_t unit_tokens(std::int32_t packed_shift) {
  return packed_shift < 3 ? 8 >> packed_shift : 1;
}

/// The rows that somebody sees, for threads that load (seen_tile.cuh).
struct SeenTiles {
  const std::uint32_t* queries = nullptr;  ///< see SeenRows; null: all are
  const std::uint32_t* keys = nullptr;     ///< likewise
  std::int32_t rows_k = 0;
  /// If each kv head has its own list: words of `keys` for one list.
  std::int32_t words_per_list = 0;
  TilePieces q;
  TilePieces dout;
  TilePieces k;
  TilePieces v;
};

/// Tensors by address, for kernels that take no descriptors; `dout` has 16-bit elements.
struct PlainTensors {
  StridedRows q;
  StridedRows k;
  StridedRows v;
  StridedRows dout;
};

/// Arguments of a launch, passed by value. NOTE: members that every step reads come before the
/// spans: after them, lists whose items have one head group ran up to 5 % slower.
struct BackwardParams {
  CUtensorMap q;     ///< box of packed_heads x tokens of a q tile
  CUtensorMap dout;  ///< likewise
  CUtensorMap k;     ///< box of 1 x keys of a k tile
  CUtensorMap v;     ///< likewise
  QueryTiles query;
  BackwardSoftmax softmax;
  DqOrder dq_order;
  DqOutput dq;
  KeyGradients key_gradients;
  BackwardItems items;
  InFlightItems coming;
  DqCompletion completion;
  SeenTiles seen;
  PlainTensors tensors;
};
static_assert(sizeof(BackwardParams) <= 4096);

}  // namespace magi::sm90
