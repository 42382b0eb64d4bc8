// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/schedule/host/item_order.hpp"
#include "magi/mask.hpp"

// This folder turns a problem (slices, row counts, heads, the tile shape of a kernel) into a
// schedule: the items of a launch in order, and the records that each walks. This header serves the
// forward, and backward_list.hpp the backward; device_list.hpp and device_backward_list.hpp build
// lists on the device. docs/kernels/schedules.md lists the files.
//
// A q tile of the forward is `tile_tokens` tokens of one head group (`packed_heads` query heads of
// one kv head). One CTA owns it and walks its band records in order, or it is cut by keys into
// splits, each owned by one CTA (split_list.hpp). Tiles without keys are listed too.
namespace magi {

/// A slice cut to the rows of one q tile and shrunk, or several slices that are one band there
/// (tile_join.hpp): every row of [q0, q1) sees a key, and every key of [k0, k1) is seen.
struct alignas(16) BandRecord {
  BandSlice band;
  std::int32_t reserved[2] = {0, 0};

  friend bool operator==(const BandRecord&, const BandRecord&) = default;
};
static_assert(sizeof(BandRecord) == 32);

/// Records [record_begin, record_end) of q tile `tile`. Indices are negative in lists made on the
/// device, for tiles whose records did not fit. They name slices, which lie before the first
/// record; the walker cuts each to the tile's rows, and the first and last have pairs there. A
/// split walks only its own keys of its first and last record.
struct alignas(16) TileWork {
  std::int32_t tile = 0;
  std::int32_t record_begin = 0;
  std::int32_t record_end = 0;
  std::int32_t cost = 0;  ///< in half k tiles of the kernel, prologue and epilogue included
  std::int32_t k_end = std::numeric_limits<std::int32_t>::max();  ///< keys of the first record
  std::int32_t k_begin = 0;                                       ///< keys of the last record
  std::int32_t slot = -1;     ///< where a split leaves its result; -1: the whole tile
  std::uint32_t sources = 0;  ///< bit s: waits for keys of source s; see forward_arrivals.hpp

  friend bool operator==(const TileWork&, const TileWork&) = default;
};
static_assert(sizeof(TileWork) == 32);

/// A q tile in splits, in walk order: they have slots [first_slot, first_slot + num_slots).
struct alignas(16) SplitTile {
  std::int32_t tile = 0;
  std::int32_t first_slot = 0;
  std::int32_t num_slots = 0;
  std::int32_t reserved = 0;

  friend bool operator==(const SplitTile&, const SplitTile&) = default;
};

/// Values of a list made on the device, which the host does not know.
struct ListOutcome {
  std::int32_t packed_heads = 0;
  std::int32_t head_groups = 0;
  std::int32_t num_works = 0;
  std::int32_t num_split_tiles = 0;
  std::int32_t num_slots = 0;
};

/// The way one kernel instance tiles the score matrix.
struct TileShape {
  std::int32_t rows = 128;         ///< rows of a q tile: tokens x packed heads
  std::int32_t keys = 128;         ///< keys of a k tile
  std::int32_t trimmed_keys = 64;  ///< keys of a short last k tile; 0: none
  std::int32_t overhead = 2;       ///< cost of an item besides its k tiles, in half k tiles
};

/// The problem that a list is made for.
struct ForwardProblem {
  std::int32_t rows_q = 0;
  std::int32_t rows_k = 0;
  std::int32_t heads_q = 1;
  std::int32_t heads_kv = 1;
  std::int32_t dim_qk = 128;
  std::int32_t dim_v = 128;
  std::int64_t cache_bytes = std::int64_t{32} << 20;  ///< K and V of one section of heads fit here
  /// A key row that neither slices (see cut_at_own_rows) nor joined records cross; 0: there is
  /// none.
  std::int32_t key_cut = 0;

  friend bool operator==(const ForwardProblem&, const ForwardProblem&) = default;
};

/// The items of one launch, in the order of ForwardOrder: in each section the longest works first.
/// Works that wait for in-flight keys come after the others.
struct ForwardList {
  ForwardProblem problem;
  TileShape shape;
  std::int32_t packed_heads = 1;
  std::int32_t tile_tokens = 0;
  std::int32_t head_groups = 0;          ///< heads_q / packed_heads
  std::int32_t groups_per_section = 0;   ///< the last section may have fewer
  std::int32_t num_works = 0;            ///< elements of `tiles`
  std::int32_t num_in_flight_works = 0;  ///< the last works: their keys arrive late
  std::int32_t num_waiting_works = 0;    ///< all that wait for in-flight keys
  std::int32_t in_flight_groups_per_section = 0;
  std::vector<TileWork> tiles;  ///< every q tile, whole or in splits, longest first, ties by index
  std::vector<BandRecord> records;     ///< by tile; empty ones lie where slices were joined
  std::vector<SplitTile> split_tiles;  ///< by falling cost of the tile, ties by index

  /// ceil(rows_q / tile_tokens)
  std::int32_t num_tiles() const {
    return problem.rows_q == 0 ? 0 : (problem.rows_q - 1) / tile_tokens + 1;
  }
  std::int64_t num_items() const { return std::int64_t{head_groups} * num_works; }
  std::int32_t num_split_tiles() const { return static_cast<std::int32_t>(split_tiles.size()); }
  std::int64_t num_waiting_items() const { return std::int64_t{head_groups} * num_waiting_works; }
  ForwardOrder order() const {
    return {num_works, head_groups, groups_per_section, num_in_flight_works,
            in_flight_groups_per_section};
  }
  /// Splits of one head group.
  std::int32_t num_slots() const {
    return split_tiles.empty() ? 0 : split_tiles.back().first_slot + split_tiles.back().num_slots;
  }
  /// Modelled cost of all items, in half k tiles.
  std::int64_t total_cost() const;
};

/// Allowed heads per tile, ascending: powers of two up to 16.
std::vector<std::int32_t> allowed_packed_heads(const ForwardProblem& problem,
                                               const TileShape& shape);

/// Makes a list without tiles and records: all that does not depend on slices. Throws
/// InvalidArgument naming what is not allowed.
ForwardList forward_list_frame(const ForwardProblem& problem, const TileShape& shape,
                               std::int32_t packed_heads);

/// Builds the list, no tile in splits. `packed_heads` is a power of two that divides heads_q /
/// heads_kv and the tile's rows. Throws InvalidArgument naming what is not allowed.
ForwardList build_forward_list(const ForwardProblem& problem, std::span<const BandSlice> slices,
                               const TileShape& shape, std::int32_t packed_heads);

/// Builds the list with the packed heads of the least modelled cost before records are joined; ties
/// go to fewer heads.
ForwardList build_forward_list(const ForwardProblem& problem, std::span<const BandSlice> slices,
                               const TileShape& shape);

}  // namespace magi
