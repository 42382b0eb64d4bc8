// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/schedule/host/backward_arrivals.hpp"
#include "kernels/schedule/host/item_order.hpp"
#include "kernels/schedule/host/seen_rows.hpp"
#include "magi/mask.hpp"

// Schedules of the backward kernels. The CTAs that walk the q tiles of a k tile own it: they sum
// its dK and dV. A q tile is `tile_tokens` tokens of one head group (`packed_heads` query heads of
// one kv head) on an aligned grid; its dQ is a sum over the k tiles that it sees, in the order of
// the list. One q tile of one head group against one k tile is a step, the unit of all modelled
// costs.
namespace magi {

/// A slice cut to the keys of one k tile and shrunk, or several slices that are one band there
/// (tile_join.hpp), with the place of its semaphore values.
struct alignas(16) KeyRecord {
  BandSlice band;
  std::int32_t run_begin = 0;  ///< in BackwardList::semaphore_runs; the last run holds to the end
  std::int32_t run_end = 0;

  friend bool operator==(const KeyRecord&, const KeyRecord&) = default;
};
static_assert(sizeof(KeyRecord) == 32);

/// A run of a record's q tiles: from `q_tile` to the record's next run, it adds to dQ when the
/// semaphore has `value`, the number of records of its component that add before it.
struct alignas(16) SemaphoreRun {
  std::int32_t q_tile = 0;
  std::int32_t value = 0;
  std::int32_t component = 0;  ///< of the record
  std::int32_t is_last = 0;    ///< 1: no record adds after it, and the main kernel converts the sum

  friend bool operator==(const SemaphoreRun&, const SemaphoreRun&) = default;
};

/// The semaphores of a q tile, one for each component: their first number, and the sum of their
/// values after all records have added.
struct alignas(8) TileSemaphores {
  std::int32_t begin = 0;
  std::int32_t num_additions = 0;

  friend bool operator==(const TileSemaphores&, const TileSemaphores&) = default;
};

/// Values of a list made on the device, which the host does not know.
struct BackwardOutcome {
  std::int64_t num_records = 0;  ///< needed by the list, with those that joining leaves empty
  std::int32_t num_tiles = 0;
  std::int32_t num_items = 0;
  std::int32_t is_overflowing = 0;  ///< its records or semaphore runs exceed the capacity
  std::int32_t has_unseen = 0;      ///< the mask leaves rows out; see seen_rows.hpp
  std::int32_t is_ordered = 0;      ///< see BackwardList
};

/// Keys [key_begin, key_end), at most BackwardTileShape::keys, and their records. Tiles without
/// records are listed too: every key has one owner.
struct alignas(16) KeyTile {
  std::int32_t key_begin = 0;
  std::int32_t key_end = 0;
  std::int32_t record_begin = 0;
  std::int32_t record_end = 0;

  friend bool operator==(const KeyTile&, const KeyTile&) = default;
};

/// The way one kernel instance tiles the score matrix.
struct BackwardTileShape {
  std::int32_t rows = 64;       ///< rows of a q tile: tokens x packed heads
  std::int32_t keys = 128;      ///< keys of a k tile
  std::int32_t overhead = 3;    ///< cost of an item besides its steps, in steps
  std::int32_t split_cost = 2;  ///< cost of handing dK and dV to the next split, in steps
  bool has_converter = true;    ///< the main kernel can make dq of sums that it completes
};

/// The problem that a list is made for.
struct BackwardProblem {
  std::int32_t rows_q = 0;
  std::int32_t rows_k = 0;
  std::int32_t heads_q = 1;
  std::int32_t heads_kv = 1;
  std::int32_t dim_qk = 128;
  std::int32_t dim_v = 128;
  std::int32_t num_ctas = 132;                        ///< that walk the list at once
  std::int64_t cache_bytes = std::int64_t{32} << 20;  ///< q, dout and dQ of a section fit here
  InFlightKeys coming;                                ///< empty: all keys are present

  friend bool operator==(const BackwardProblem&, const BackwardProblem&) = default;
};

/// The options of a list; 0 or nothing: chosen by modelled cost.
struct BackwardChoice {
  std::int32_t packed_heads = 0;       ///< a power of two that divides the heads of a kv head
  std::int32_t heads_per_item = 0;     ///< a multiple of packed_heads that divides them
  std::int32_t section_heads = 0;      ///< kv heads
  std::optional<bool> is_group_first;  ///< see BackwardList
  /// dQ is bitwise reproducible: lists are ordered, and in-flight keys are awaited before them.
  bool is_deterministic = true;
  /// Builds the plain schedule (plain_list.hpp). It heeds only packed_heads and is_deterministic,
  /// and has no in-flight keys.
  bool is_plain = false;
};

/// The items of one launch, span by span. Long k tiles have many splits, and k tiles of a component
/// lie together. The tail, the shortest k tiles of all kv heads, comes last, so that all CTAs end
/// together. Items that wait for in-flight keys form one span. k tiles that wait for nothing run
/// before it, while keys travel, and after it, as the tail.
///
/// Components are runs of rows that records join: rows of two components have no record in common.
/// If two meet inside a q tile, each adds zeros to the other's rows, which needs no order.
struct BackwardList {
  BackwardProblem problem;
  BackwardTileShape shape;
  std::int32_t packed_heads = 1;
  std::int32_t tile_tokens = 64;
  std::int32_t head_groups = 1;  ///< heads_q / packed_heads
  /// An item walks all q tiles of a head group before the next group; if false, all groups of a q
  /// tile before the next q tile.
  bool is_group_first = false;
  bool is_ordered = true;      ///< an addition to a dQ sum waits for its semaphore value; see
                               ///< "Ordered sums of dQ" in docs/kernels/backward.md
  bool is_converting = false;  ///< the main kernel converts dQ sums, all but those of left_tiles
  std::int32_t num_components = 0;
  std::vector<TileSpan> spans;     ///< at most kMaxSpans
  std::vector<KeyTile> tiles;      ///< in the order of the list
  std::vector<KeyRecord> records;  ///< by tile
  std::vector<SemaphoreRun> semaphore_runs;
  std::vector<std::int32_t> tile_components;    ///< [q tiles]: components with rows in it
  std::vector<TileSemaphores> tile_semaphores;  ///< [q tiles]; empty without components
  std::vector<std::int32_t> left_tiles;  ///< q tiles left to the dQ convert kernel, ascending
  std::vector<KeySegment> segments;      ///< of all rows; empty unless keys come
  std::vector<TileArrival> arrivals;     ///< [k tiles], empty unless keys come
  SeenRows seen;

  std::int32_t num_q_tiles() const {
    return problem.rows_q == 0 ? 0 : (problem.rows_q - 1) / tile_tokens + 1;
  }
  std::int64_t num_items() const { return spans.empty() ? 0 : spans.back().item_end; }
  /// k tiles; of a frame, as many as it has room for.
  std::int64_t num_tiles() const {
    return spans.empty() ? 0 : std::int64_t{spans.back().tile_begin} + spans.back().num_tiles;
  }
  /// The item at place `index` of the order in which they are handed out.
  BackwardItem item(std::int64_t index) const {
    return backward_item(spans.data(), problem.heads_kv, static_cast<std::uint32_t>(index));
  }
  std::int64_t num_sums() const { return std::int64_t{head_groups} * num_q_tiles(); }
  /// Floats of all dQ sums of an instance that holds `dim_qk` columns.
  std::int64_t sum_floats(std::int32_t dim_qk) const { return num_sums() * shape.rows * dim_qk; }
  /// Slots in which splits sum dK and dV.
  std::int64_t num_slots() const;
  std::int64_t slot_floats(std::int32_t dim_qk, std::int32_t dim_v) const {
    return num_slots() * shape.keys * (dim_qk + dim_v);
  }
  /// Semaphores of dQ of a head group, numbered q tile + component. No two pairs share a number:
  /// components follow one another along the rows, so a later component has no earlier q tile.
  std::int32_t num_semaphores() const { return num_q_tiles() + num_components; }
  /// Whether items wait for the keys that they read. Items that add to dQ in order do not: one that
  /// waited would hold up all items after it.
  bool awaits_keys() const {
    return !problem.coming.empty() && !problem.coming.is_awaited && !is_ordered;
  }
  /// Words that say which items are deferred.
  std::int64_t num_late_words() const { return awaits_keys() ? (num_items() + 31) / 32 : 0; }
  /// Counts decisions of each k tile and kv head, items deferred and handed out, and late words.
  std::int64_t num_late_counters() const {
    if (!awaits_keys()) return 0;
    return num_tiles() * problem.heads_kv + 2 + num_late_words();
  }
  /// Counts semaphores, splits done per k tile, kv head and warpgroup, and items handed out.
  std::int64_t num_counters() const {
    return std::int64_t{head_groups} * num_semaphores() + 2 * num_tiles() * problem.heads_kv + 1;
  }
};

/// Throws InvalidArgument naming what is not allowed.
BackwardList build_backward_list(const BackwardProblem& problem, std::span<const BandSlice> slices,
                                 const BackwardTileShape& shape, const BackwardChoice& choice = {});

}  // namespace magi
