// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/schedule/device/device_list_steps.hpp"
#include "kernels/schedule/host/split_rule.hpp"

// Builds the forward's schedule on the device, from slices in device memory that the host does not
// see: byte for byte the host's list. All kernels go to one stream and the host does not wait, so a
// graph can capture the build and replay it with other slices.
//
//   clear                the counters
//   count   slices       a tally per q tile, and its slices in a bin, in any order; the slices
//                        clamped, shrunk and kept
//   emit    tiles        the begin of each tile's records; the records, joined; the tile's cost
//   sort    tiles        tiles by falling cost: in chunks, then of all (device_rank.cuh)
//   split   tiles        the works, if tiles are split: tiles, and splits of the longest
//
// Builds of many slices or tiles have no bins: one cluster scans the tallies (place), and a second
// walk of the slices fills the room of each tile (fill). One cluster sorts many tiles. Where there
// are no clusters, one CTA does what they do (device_cluster.cuh).
namespace magi {

/// The begin of the workspace. All zero before a build.
struct DeviceListHeader {
  std::uint64_t bad_slice = 0;        ///< bad_slice_word of the first bad slice
  std::uint64_t num_records = 0;      ///< records that the list needs
  std::uint64_t list_cost = 0;        ///< sum of the list's tiles
  std::int32_t max_cost = 0;          ///< the largest cost of the list's tiles
  std::int32_t max_cost_inverse = 0;  ///< 2^30 - the least cost
  std::int32_t is_overflowing = 0;    ///< num_records exceeds the capacity
  std::int32_t is_splitting = 0;      ///< `split` makes the works
  ListOutcome outcome;
  unsigned ticket = 0;  ///< ticket counter of the forward kernel
};

/// The inputs that a build needs besides its slices.
struct DeviceListShape {
  ForwardProblem problem;
  TileShape tile;
  SplitRule split;
  std::int32_t packed_heads = 1;
  std::int32_t num_slices = 0;
  std::int64_t record_capacity = 0;
  bool has_clusters = true;  ///< false: one CTA does what a cluster does, on any GPU
};

/// Returns the most packed heads that are allowed, because tiles of fewer tokens cost no more in
/// sum. At ties the host takes fewer heads, which are no faster.
std::int32_t device_packed_heads(const ForwardProblem& problem, const TileShape& shape);

/// Returns enough records for any mask of few slices, and for slices that overlap little.
std::int64_t default_record_capacity(const DeviceListShape& shape);

/// The places of the parts of a list, in bytes from the workspace's begin.
struct DeviceListLayout {
  ForwardList frame;  ///< the list without contents
  TileGrid grid;
  std::int32_t max_works = 0;
  std::int32_t max_split_tiles = 0;
  std::size_t tallies = 0;        ///< TileTally[tiles]
  std::size_t group_records = 0;  ///< int32[kMostTileGroups]: sums over groups of tiles
  std::size_t zeroed_bytes = 0;   ///< the header and all parts above
  std::size_t placed = 0;         ///< TileWork[tiles]: unsplit, by index
  std::size_t slices = 0;         ///< BandRecord[num_slices]
  std::size_t tiles = 0;          ///< TileWork[tiles]: unsplit, in order, if some are split
  std::size_t works = 0;          ///< TileWork[max_works]: the list
  std::size_t split_tiles = 0;    ///< SplitTile[max_split_tiles]: the list
  std::size_t begins = 0;         ///< int32[tiles], first record of a tile; negative: not stored
  std::size_t sort_keys = 0;      ///< uint64[2][tiles]
  std::size_t bins = 0;           ///< int32[tiles, kBinSlices], if there are bins
  std::size_t slice_ids = 0;      ///< int32[record_capacity], if there are none
  std::size_t records = 0;        ///< BandRecord[record_capacity]: the list, right after the slices
  std::size_t size_bytes = 0;
  bool has_bins = false;
};

/// Throws InvalidArgument naming what is not allowed.
DeviceListLayout device_list_layout(const DeviceListShape& shape);

/// Enqueues the build into `workspace` (layout.size_bytes, aligned to 256 bytes).
void build_device_list(const DeviceListShape& shape, const DeviceListLayout& layout,
                       const SliceArrays& slices, void* workspace, cudaStream_t stream);

}  // namespace magi
