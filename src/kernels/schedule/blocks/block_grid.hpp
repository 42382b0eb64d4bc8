// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "magi/mask.hpp"

// Blocks of queries that see blocks of keys, per kv head: which pairs are visible, and how the list
// of a q block is cut into k tiles and a k tile into bands. The list kernels, the attention kernels
// and the tests share this file.
namespace magi {

/// Block i of q_block queries and block j of k_block keys; the last of a side may be shorter.
struct BlockGrid {
  std::int32_t rows_q = 0;
  std::int32_t rows_k = 0;
  std::int32_t q_block = 64;
  std::int32_t k_block = 64;
  std::int32_t heads_kv = 1;
  std::int32_t mask_heads = 1;  ///< heads_kv, or 1: all kv heads see the same
  bool is_causal = false;       ///< query i sees no key after i + rows_k - rows_q

  MAGI_HOST_DEVICE std::int32_t num_q() const { return (rows_q + q_block - 1) / q_block; }
  MAGI_HOST_DEVICE std::int32_t num_k() const { return (rows_k + k_block - 1) / k_block; }
  /// Lists of k blocks: one for each q block of each head of the mask.
  MAGI_HOST_DEVICE std::int32_t num_lists() const { return mask_heads * num_q(); }
  /// The list of a q block for a kv head.
  MAGI_HOST_DEVICE std::int32_t list_of(std::int32_t kv_head, std::int32_t block) const {
    return (mask_heads == 1 ? 0 : kv_head) * num_q() + block;
  }
  /// Keys [0, end) of which query `row` may see some.
  MAGI_HOST_DEVICE std::int32_t key_end(std::int32_t row) const {
    if (!is_causal) return rows_k;
    const std::int32_t end = row + 1 + rows_k - rows_q;
    return end < 0 ? 0 : (end < rows_k ? end : rows_k);
  }
  MAGI_HOST_DEVICE std::int32_t last_row(std::int32_t block) const {
    const std::int32_t end = (block + 1) * q_block;
    return (end < rows_q ? end : rows_q) - 1;
  }
  /// k blocks [0, end) of which some query of the block may see a key.
  MAGI_HOST_DEVICE std::int32_t num_reached(std::int32_t block) const {
    return (key_end(last_row(block)) + k_block - 1) / k_block;
  }
};

/// The entries of one list: places [begin, begin + count) of all entries, k blocks ascending.
struct BlockList {
  std::int32_t begin = 0;
  std::int32_t count = 0;
};

/// k tiles are gathered in units of neighbouring keys: the largest power of two that divides a k
/// block, at most a tile.
struct GatherShape {
  std::int32_t tile_keys = 128;
  std::int32_t unit = 64;  ///< keys
  std::int32_t units_per_block = 1;
  std::int32_t units_per_tile = 2;
};

MAGI_HOST_DEVICE GatherShape gather_shape(std::int32_t k_block, std::int32_t tile_keys) {
  GatherShape shape;
  shape.tile_keys = tile_keys;
  shape.unit = 1;
  while (shape.unit < tile_keys && k_block % (2 * shape.unit) == 0) shape.unit *= 2;
  shape.units_per_block = k_block / shape.unit;
  shape.units_per_tile = tile_keys / shape.unit;
  return shape;
}

/// k tiles of one q tile. Their keys are units [first_unit, first_unit + num_units) of the list, in
/// which block b has units [b * units_per_block, ...), and after them keys [key_begin, key_end).
/// For masks, columns count as keys from key_begin - num_units * unit on, since keys of units lie
/// before all keys that a query must not see.
struct BlockRun {
  std::int32_t first_unit = 0;
  std::int32_t num_units = 0;
  std::int32_t key_begin = 0;
  std::int32_t key_end = 0;
  std::int32_t num_tiles = 0;
  std::int32_t is_masked = 0;  ///< 0: every row sees every key
  std::int32_t is_last = 0;    ///< of the q tile

  MAGI_HOST_DEVICE std::int32_t first_column(const GatherShape& shape) const {
    return key_begin - num_units * shape.unit;
  }
};

/// Returns the first key of unit `index` of a run, counted from the run's first tile; -1: the unit
/// has no keys. entry_at(i): entry i of the list.
template <typename EntryAt>
MAGI_HOST_DEVICE std::int32_t key_of_unit(const BlockGrid& grid, const GatherShape& shape,
                                          const BlockRun& run, std::int32_t index,
                                          EntryAt entry_at) {
  if (index < run.num_units) {
    const std::int32_t unit = run.first_unit + index;
    const std::int32_t entry = shape.units_per_block == 1 ? unit : unit / shape.units_per_block;
    const std::int32_t part = unit - entry * shape.units_per_block;
    return entry_at(entry) * grid.k_block + part * shape.unit;
  }
  const std::int32_t key = run.key_begin + (index - run.num_units) * shape.unit;
  return key < run.key_end ? key : -1;
}

/// Calls visit(run) for the k tiles of q tile [row_begin, row_end), which lies in one q block whose
/// list has `count` entries: those without a mask in one run, then masked ones one by one. Blocks
/// that end the tensor or meet the diagonal come last; others fill up their first tile.
template <typename EntryAt, typename Visit>
MAGI_HOST_DEVICE void for_each_block_run(const BlockGrid& grid, const GatherShape& shape,
                                         std::int32_t row_begin, std::int32_t row_end,
                                         std::int32_t count, EntryAt entry_at, Visit visit) {
  const std::int32_t low = grid.key_end(row_begin);     // all rows see the keys before it
  const std::int32_t high = grid.key_end(row_end - 1);  // no row sees keys from it on
  std::int32_t end = count;
  while (end > 0 && entry_at(end - 1) * grid.k_block >= high) --end;
  std::int32_t next = end;
  while (next > 0 && (entry_at(next - 1) + 1) * grid.k_block > low) --next;
  const std::int32_t num_units = next * shape.units_per_block;
  const std::int32_t num_wide = num_units / shape.units_per_tile;
  BlockRun run;
  run.num_tiles = num_wide;
  run.num_units = num_wide * shape.units_per_tile;
  std::int32_t rest = num_units - run.num_units;
  run.is_last = rest == 0 && next == end ? 1 : 0;
  if (num_wide > 0) visit(run);
  run.first_unit = run.num_units;
  run.num_tiles = 1;
  run.is_masked = 1;
  while (rest > 0 || next < end) {
    run.num_units = rest;
    run.key_begin = run.key_end = low;
    // All rows must see the keys of units, so these lie before `low`.
    if (next < end && (rest == 0 || entry_at(next) * grid.k_block <= low)) {
      run.key_begin = entry_at(next) * grid.k_block;
      run.key_end = run.key_begin + grid.k_block;
      // Neighbouring blocks count as one.
      while (++next < end && entry_at(next) * grid.k_block == run.key_end) {
        run.key_end += grid.k_block;
      }
      run.key_end = run.key_end < high ? run.key_end : high;
    }
    std::int32_t left = rest * shape.unit + run.key_end - run.key_begin;
    for (; left > 0; left -= shape.tile_keys) {
      run.is_last = left <= shape.tile_keys && next >= end ? 1 : 0;
      visit(run);
      run.key_begin += shape.tile_keys - run.num_units * shape.unit;
      run.num_units = 0;
    }
    rest = 0;
  }
}

/// Calls visit(band, times) for each band of a q block and the keys [key_begin, key_end) of a k
/// tile; a band joins neighbouring blocks of keys that are seen equally often. times_at(j): how
/// often the q block sees k block j.
template <typename TimesAt, typename Visit>
MAGI_HOST_DEVICE void for_each_key_band(const BlockGrid& grid, std::int32_t block,
                                        std::int32_t key_begin, std::int32_t key_end,
                                        TimesAt times_at, Visit visit) {
  constexpr std::int32_t kUnbounded = 1 << 30;
  const std::int32_t end = (key_end + grid.k_block - 1) / grid.k_block;
  for (std::int32_t first = key_begin / grid.k_block; first < end;) {
    const std::int32_t times = times_at(first);
    std::int32_t next = first + 1;
    while (next < end && times_at(next) == times) ++next;
    if (times > 0) {
      const std::int32_t begin = first * grid.k_block;
      const std::int32_t behind = next * grid.k_block;
      const BandSlice band = shrink(
          BandSlice{block * grid.q_block, grid.last_row(block) + 1,
                    begin > key_begin ? begin : key_begin, behind < key_end ? behind : key_end,
                    -kUnbounded, grid.is_causal ? grid.rows_k - grid.rows_q : kUnbounded});
      if (band.q0 < band.q1) visit(band, times);
    }
    first = next;
  }
}

/// Buckets that sort lists by falling length.
inline constexpr std::int32_t kLengthBuckets = 1024;

/// Bits by which the length of a list of up to num_k different blocks is shifted to its bucket.
MAGI_HOST_DEVICE std::int32_t length_shift(std::int32_t num_k) {
  std::int32_t shift = 0;
  while (num_k >> shift >= kLengthBuckets) ++shift;
  return shift;
}

/// Longest first. Lists longer than all blocks once each share the first bucket; empty ones have
/// the last for themselves.
MAGI_HOST_DEVICE std::int32_t length_bucket(std::int32_t length, std::int32_t shift) {
  const std::int32_t bucket = (length + (1 << shift) - 1) >> shift;
  return kLengthBuckets - 1 - (bucket < kLengthBuckets ? bucket : kLengthBuckets - 1);
}

}  // namespace magi
