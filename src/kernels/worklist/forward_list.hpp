// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/mask.hpp"

// Work lists of the forward kernels, tile sizes of a kernel being arguments. A q tile is
// `tile_tokens` tokens of one head group (`packed_heads` query heads of one kv head); it is owned
// by one CTA, which walks the tile's band records in order. Tiles without keys are listed too.
namespace magi {

/// A slice cut to the rows of one q tile and shrunk: every row of [q0, q1) sees a key, every key of
/// [k0, k1) is seen.
struct alignas(16) BandRecord {
  BandSlice band;
  std::int32_t reserved[2] = {0, 0};

  friend bool operator==(const BandRecord&, const BandRecord&) = default;
};
static_assert(sizeof(BandRecord) == 32);

/// Records [record_begin, record_end) of q tile `tile`. Negative indices occur in lists made on the
/// device, for tiles whose records did not fit: there all slices lie before the first record, and
/// the walker cuts each to the tile's rows; the first and the last of them leave some.
struct alignas(16) TileWork {
  std::int32_t tile = 0;
  std::int32_t record_begin = 0;
  std::int32_t record_end = 0;
  std::int32_t cost = 0;  ///< in half k tiles of the kernel, prologue and epilogue included

  friend bool operator==(const TileWork&, const TileWork&) = default;
};

/// How one kernel instance tiles the score matrix.
struct TileShape {
  std::int32_t rows = 128;         ///< rows of a q tile: tokens x packed heads
  std::int32_t keys = 128;         ///< keys of a k tile
  std::int32_t trimmed_keys = 64;  ///< keys of a short last k tile; 0: none
  std::int32_t overhead = 2;       ///< cost of an item besides its k tiles, in half k tiles
};

/// What a list is made for.
struct ForwardProblem {
  std::int32_t rows_q = 0;
  std::int32_t rows_k = 0;
  std::int32_t heads_q = 1;
  std::int32_t heads_kv = 1;
  std::int32_t dim_qk = 128;
  std::int32_t dim_v = 128;
  std::int64_t cache_bytes = std::int64_t{32} << 20;  ///< K and V of one section of heads fit here

  friend bool operator==(const ForwardProblem&, const ForwardProblem&) = default;
};

/// The items of one launch. Item i is tile tiles[(i % section_items) / groups] of head group
/// (section * groups_per_section + remainder): sections of head groups that share the cache, in
/// each the dearest tiles first.
struct ForwardList {
  ForwardProblem problem;
  TileShape shape;
  std::int32_t packed_heads = 1;
  std::int32_t tile_tokens = 0;
  std::int32_t head_groups = 0;         ///< heads_q / packed_heads
  std::int32_t groups_per_section = 0;  ///< the last section may have fewer
  std::vector<TileWork> tiles;          ///< every q tile once, dearest first, ties by index
  std::vector<BandRecord> records;      ///< of a tile in order of the slices

  /// ceil(rows_q / tile_tokens)
  std::int32_t num_tiles() const {
    return problem.rows_q == 0 ? 0 : (problem.rows_q - 1) / tile_tokens + 1;
  }
  std::int64_t num_items() const { return std::int64_t{head_groups} * num_tiles(); }
  /// Modelled cost of all items, in half k tiles.
  std::int64_t total_cost() const;
};

/// One item in the order in which they are handed out.
struct ForwardItem {
  std::int32_t tile_position = 0;  ///< in ForwardList::tiles
  std::int32_t head_group = 0;
};
ForwardItem forward_item(const ForwardList& list, std::int64_t index);

/// Allowed heads per tile, ascending: powers of two up to 16.
std::vector<std::int32_t> allowed_packed_heads(const ForwardProblem& problem,
                                               const TileShape& shape);

/// The list without its tiles and records: all that does not depend on slices. Throws
/// InvalidArgument naming what is not allowed.
ForwardList forward_list_frame(const ForwardProblem& problem, const TileShape& shape,
                               std::int32_t packed_heads);

/// The list with the given heads per tile: a power of two that divides heads_q / heads_kv and the
/// tile's rows. Throws InvalidArgument naming what is not allowed.
ForwardList build_forward_list(const ForwardProblem& problem, std::span<const BandSlice> slices,
                               const TileShape& shape, std::int32_t packed_heads);

/// The cheapest list by modelled cost over the allowed heads per tile; ties go to fewer heads.
ForwardList build_forward_list(const ForwardProblem& problem, std::span<const BandSlice> slices,
                               const TileShape& shape);

}  // namespace magi
