// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/schedule/device/device_list_steps.hpp"
#include "kernels/schedule/host/plain_list.hpp"

// Builds the backward's plain list on the device, from slices in device memory that the host does
// not see: tile by tile the list of build_plain_list. All kernels go to one stream and the host
// does not wait, so a graph can capture the build and replay it with other slices.
//
//   cut     one CTA      the k tiles that begin with slices; other CTAs clear the counters
//   count   slices       a tally per k tile, for both tilings of the keys, and its slices in a
//                        bin, in any order; the slices clamped, shrunk and kept
//   emit    k tiles      the tiling with the lower cost; the begin of each k tile's records; the
//                        records, joined, and their steps
//   join    rows         the components of rows, by records
//   number  records      the component of each record, k tile and q tile
//   sort    k tiles      two orders of the k tiles, in chunks, then of all (device_rank.cuh)
//   arrange items        the items' walk, additions and order (plain_rule.hpp)
//   order   records      the semaphore values at which a record adds to dQ, if sums have an order
//
// Builds of many slices, keys or k tiles have no bins. They clear the memory and mark slices before
// the cut. One CTA or cluster chooses the tiling with the lower cost and scans the tallies (place),
// and a second walk of the slices fills the memory of each k tile (fill). One cluster cuts many
// keys, and sorts and arranges many k tiles (radix sort).
namespace magi {

inline constexpr int kKeyTilings = 2;  ///< a plain grid, or cuts at the begins of slices
inline constexpr std::int32_t kMostRowGroups = 1024;
inline constexpr std::int32_t kLeastGroupShift = 8;
inline constexpr std::int32_t kRowBits = 32;  ///< rows, or keys, of a word of bits
/// The most words of keys that one CTA marks and cuts in shared memory.
inline constexpr std::int32_t kMostCutWords = 8192;

MAGI_HOST_DEVICE std::int32_t num_row_words(std::int32_t rows) {
  return (rows + kRowBits - 1) / kRowBits;
}

/// The begin of the workspace. All zero before a build.
struct DeviceBackwardHeader {
  std::uint64_t bad_slice = 0;            ///< bad_slice_word of the first bad slice
  std::uint64_t steps[kKeyTilings] = {};  ///< steps of each tiling, before records are joined
  std::uint64_t longest_steps = 0;        ///< see PlainSums
  std::uint64_t head_tiles = 0;           ///< k tiles before the tail
  std::uint64_t head_steps = 0;           ///< steps of these
  std::uint64_t wide_steps = 0;           ///< see PlainSums
  std::uint32_t num_wide = 0;             ///< likewise
  std::int32_t longest_narrow = 0;        ///< likewise
  std::uint32_t num_runs = 0;             ///< semaphore runs that the list needs
  std::int32_t max_cost = 0;              ///< the largest cost of the list's tiles
  std::int32_t max_cost_inverse = 0;      ///< kMaxTileCost - the least cost
  std::int32_t num_components = 0;
  std::int32_t tiling = 0;  ///< the chosen tiling
  std::int32_t packed_heads = 0;
  std::int32_t is_converting = 0;      ///< see PlainWalk
  std::uint32_t unordered_ticket = 0;  ///< ticket counter of the launch for `unordered`
  BackwardOutcome outcome;
  BackwardOutcome unordered;  ///< for unordered sums; one of the two has no items
};

/// The semaphores of a record's additions to dQ, and its place in the list.
struct alignas(16) RecordMark {
  std::int32_t semaphore_begin = 0;  ///< of q tile + component; empty without a record
  std::int32_t semaphore_end = 0;
  std::int32_t tile = 0;  ///< k tile, by its keys
  std::int32_t component = 0;
};
static_assert(sizeof(RecordMark) == 16);

/// The key that sorts k tiles before the tail: by the longest tile of the component, then by
/// component, then by length.
struct alignas(16) ComponentKey {
  std::uint64_t component = 0;
  std::uint64_t tile = 0;  ///< the key by which all k tiles are sorted

  /// Compares without branches, because the lanes of a warp would diverge.
  MAGI_HOST_DEVICE friend bool operator<(const ComponentKey& a, const ComponentKey& b) {
    const int is_before = a.component < b.component ? 1 : 0;
    const int is_equal = a.component == b.component ? 1 : 0;
    return (is_before | (is_equal & (a.tile < b.tile ? 1 : 0))) != 0;
  }
};

/// Groups of 2^shift rows, at most kMostRowGroups, each searched for components by itself.
struct RowGroups {
  std::int32_t shift = kLeastGroupShift;
  std::int32_t count = 1;
};

/// The inputs that a build needs besides its slices.
struct DeviceBackwardShape {
  BackwardProblem problem;
  BackwardTileShape tile;
  std::int32_t packed_heads = 1;
  std::int32_t num_slices = 0;
  std::int64_t record_capacity = 0;
  bool may_be_unordered = false;  ///< see PlainRule
  bool has_clusters = true;       ///< see DeviceListShape
};

/// Returns enough records for any mask of few slices, and for slices that overlap little.
std::int64_t default_record_capacity(const DeviceBackwardShape& shape);

PlainRule rule_of(const DeviceBackwardShape& shape);

/// The places of the parts of a list, in bytes from the workspace's begin.
struct DeviceBackwardLayout {
  BackwardList frame;  ///< the list without contents, for the most k tiles and components
  std::int32_t max_tiles = 0;
  std::int64_t run_capacity = 0;
  RowGroups groups;
  std::size_t row_ends = 0;          ///< int32 [rows_q]: last end of records that begin there
  std::size_t group_ends = 0;        ///< int32 [groups]: last end of records that begin there
  std::size_t tallies = 0;           ///< TileTally [kKeyTilings, max_tiles]
  std::size_t group_records = 0;     ///< int32 [kKeyTilings, kMostTileGroups]
  std::size_t longest = 0;           ///< int32 [components]: steps of their longest k tile
  std::size_t record_ends = 0;       ///< int32 [components]: last of their records + 1
  std::size_t record_begins = 0;     ///< int32 [components]: num_records - first of their records
  std::size_t cut_bits = 0;          ///< uint32 [rows_k / 32]: a slice begins at the key
  std::size_t seen_keys = 0;         ///< uint32 [num_seen_words(rows_k)]: see SeenRows
  std::size_t converted_tiles = 0;   ///< int32 [q tiles]: 1 if the main kernel converts their sums
  std::size_t addition_changes = 0;  ///< int32 [q tiles + 4]: of additions, to a q tile's sums
  std::size_t zeroed_bytes = 0;      ///< the header and all parts above
  std::size_t num_cut_tiles = 0;     ///< int32
  std::size_t tile_bits = 0;         ///< uint32 [rows_k / 32]: a cut k tile begins at the key
  std::size_t tile_prefix = 0;       ///< int32 [rows_k / 32]: such keys before the word
  std::size_t begins = 0;            ///< int32 [max_tiles + 1]: first keys of the cut k tiles
  std::size_t component_bits = 0;    ///< uint32 [rows_q / 32]: a component begins in the row
  std::size_t covered_bits = 0;      ///< uint32 [rows_q / 32]: it continues into the row
  std::size_t seen_queries = 0;      ///< uint32 [num_seen_words(rows_q)]: see SeenRows
  std::size_t component_prefix = 0;  ///< int32 [rows_q / 32]: components of the group before it
  std::size_t group_counts = 0;      ///< int32 [groups]: components that begin in the group
  std::size_t tile_components = 0;   ///< int32 [q tiles]: the list
  std::size_t tile_semaphores = 0;   ///< TileSemaphores [q tiles]: the list, if sums are ordered
  std::size_t slices = 0;            ///< BandRecord [num_slices]
  std::size_t bins = 0;        ///< int32 [kKeyTilings, max_tiles, kBinSlices], if there are bins
  std::size_t slice_ids = 0;   ///< int32 [record_capacity], if there are none
  std::size_t works = 0;       ///< KeyTile [max_tiles], by their keys
  std::size_t components = 0;  ///< int32 [max_tiles], of works: that of the first record, or -1
  std::size_t places = 0;      ///< int32 [max_tiles], of works: places in the list
  std::size_t items = 0;       ///< int32 [max_items]: places in the frame, in the list's order
  std::size_t sort_keys = 0;   ///< uint64 [2, max_tiles]
  std::size_t component_keys = 0;   ///< ComponentKey [max_tiles], if the k tiles are few
  std::size_t by_component = 0;     ///< uint64 [max_tiles]: sort keys in the order of these
  std::size_t component_steps = 0;  ///< int32 [max_tiles]: steps of their component's longest
  std::size_t tiles = 0;            ///< KeyTile [max_tiles]: the list
  std::size_t records = 0;          ///< KeyRecord [record_capacity]: the list
  std::size_t marks = 0;            ///< RecordMark [record_capacity]
  std::size_t runs = 0;             ///< SemaphoreRun [run_capacity]: the list
  std::size_t size_bytes = 0;
  bool has_bins = false;

  /// Whether the whole device sorts the k tiles.
  bool has_few_tiles() const { return max_tiles <= kMostRankedKeys; }
};
static_assert(kMostPlainSplitTiles == kMostRankedKeys);

/// Throws InvalidArgument naming what is not allowed.
DeviceBackwardLayout device_backward_layout(const DeviceBackwardShape& shape);

/// Enqueues the build into `workspace` (layout.size_bytes, aligned to 256 bytes).
void build_device_backward_list(const DeviceBackwardShape& shape,
                                const DeviceBackwardLayout& layout, const SliceArrays& slices,
                                void* workspace, cudaStream_t stream);

}  // namespace magi
