// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/device/device_list.hpp"

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "cuda/arena.hpp"

namespace magi {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();

void check_shape(const DeviceListShape& shape) {
  if (shape.num_slices < 0) throw invalid("number of slices", shape.num_slices, "0 or more");
  if (shape.record_capacity < 0 || shape.record_capacity > kMaxInt) {
    throw invalid("record_capacity", shape.record_capacity, "0 to 2^31 - 1");
  }
  if (shape.split.max_splits < 0 || shape.split.max_splits > kMaxSplits) {
    throw invalid("max_splits", shape.split.max_splits, "0 to 4096");
  }
}

}  // namespace

std::int32_t device_packed_heads(const ForwardProblem& problem, const TileShape& shape) {
  return allowed_packed_heads(problem, shape).back();
}

std::int64_t default_record_capacity(const DeviceListShape& shape) {
  constexpr std::int64_t kAlwaysFits = 1 << 18;
  const ForwardList frame = forward_list_frame(shape.problem, shape.tile, shape.packed_heads);
  const std::int64_t num_slices = shape.num_slices;
  const std::int64_t all = num_slices * frame.num_tiles();
  const std::int64_t usual = 4 * (std::int64_t{frame.num_tiles()} + num_slices);
  return std::min({all, std::max(usual, kAlwaysFits), kMaxInt});
}

DeviceListLayout device_list_layout(const DeviceListShape& shape) {
  check_shape(shape);
  DeviceListLayout layout;
  layout.frame = forward_list_frame(shape.problem, shape.tile, shape.packed_heads);
  const ForwardList& frame = layout.frame;
  if (frame.num_items() + shape.split.max_splits > kMaxItems) {
    throw invalid("number of work items", frame.num_items() + shape.split.max_splits,
                  "up to 2^31 - 1025");
  }
  const std::int32_t num_tiles = frame.num_tiles();
  layout.grid = {.rows_q = shape.problem.rows_q,
                 .tile_tokens = frame.tile_tokens,
                 .num_tiles = num_tiles,
                 .packed_heads = shape.packed_heads,
                 .head_groups = frame.head_groups};
  layout.max_works = num_tiles + max_slots(shape.split, frame.head_groups);
  layout.max_split_tiles = max_split_tiles(shape.split, frame.head_groups);
  Arena arena;
  arena.add<DeviceListHeader>(1);
  layout.tallies = arena.add<TileTally>(num_tiles);
  layout.group_records = arena.add<std::int32_t>(kMostTileGroups);
  layout.zeroed_bytes = arena.size_bytes();
  layout.placed = arena.add<TileWork>(num_tiles);
  layout.tiles = arena.add<TileWork>(num_tiles);
  layout.works = arena.add<TileWork>(layout.max_works);
  layout.split_tiles = arena.add<SplitTile>(layout.max_split_tiles);
  layout.begins = arena.add<std::int32_t>(num_tiles);
  layout.sort_keys = arena.add<std::uint64_t>(std::int64_t{2} * num_tiles);
  layout.has_bins = num_tiles <= kMostRankedKeys && shape.num_slices <= kMostBinnedSlices;
  if (layout.has_bins) {
    layout.bins = arena.add<std::int32_t>(std::int64_t{num_tiles} * kBinSlices);
  } else {
    layout.slice_ids = arena.add<std::int32_t>(shape.record_capacity);
  }
  layout.slices = arena.add<BandRecord>(shape.num_slices + shape.record_capacity);
  layout.records = layout.slices + static_cast<std::size_t>(shape.num_slices) * sizeof(BandRecord);
  layout.size_bytes = arena.size_bytes();
  return layout;
}

}  // namespace magi
