// SPDX-License-Identifier: Apache-2.0
#include "kernels/worklist/device_list.hpp"

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
  if (shape.packings.empty() || shape.packings.size() > kMaxPackings) {
    throw invalid("number of packings", shape.packings.size(), "1 to 5");
  }
}

}  // namespace

std::vector<std::int32_t> device_packings(const ForwardProblem& problem, const TileShape& shape) {
  return {allowed_packed_heads(problem, shape).back()};
}

std::int64_t default_record_capacity(const DeviceListShape& shape) {
  constexpr std::int64_t kAlwaysFits = 1 << 18;
  const std::int32_t heads = *std::max_element(shape.packings.begin(), shape.packings.end());
  const ForwardList frame = forward_list_frame(shape.problem, shape.tile, heads);
  const std::int64_t num_slices = shape.num_slices;
  const std::int64_t all = num_slices * frame.num_tiles();
  const std::int64_t usual = 4 * (std::int64_t{frame.num_tiles()} + num_slices);
  return std::min({all, std::max(usual, kAlwaysFits), kMaxInt});
}

DeviceListLayout device_list_layout(const DeviceListShape& shape) {
  check_shape(shape);
  DeviceListLayout layout;
  std::int64_t sum_tiles = 0;
  for (const std::int32_t heads : shape.packings) {
    const ForwardList frame = forward_list_frame(shape.problem, shape.tile, heads);
    if (frame.num_items() + shape.split.max_splits > kMaxItems) {
      throw invalid("number of work items", frame.num_items() + shape.split.max_splits,
                    "up to 2^31 - 1025");
    }
    layout.grids.push_back({.rows_q = shape.problem.rows_q,
                            .tile_tokens = frame.tile_tokens,
                            .num_tiles = frame.num_tiles(),
                            .packed_heads = heads,
                            .head_groups = frame.head_groups,
                            .first_tally = static_cast<std::int32_t>(sum_tiles)});
    layout.max_tiles = std::max(layout.max_tiles, frame.num_tiles());
    layout.max_works =
        std::max(layout.max_works, frame.num_tiles() + max_slots(shape.split, frame.head_groups));
    layout.max_split_tiles =
        std::max(layout.max_split_tiles, max_split_tiles(shape.split, frame.head_groups));
    sum_tiles += frame.num_tiles();
    layout.frames.push_back(frame);
  }
  layout.sum_tiles = static_cast<std::int32_t>(sum_tiles);
  Arena arena;
  arena.add<DeviceListHeader>(1);
  layout.tallies = arena.add<TileTally>(sum_tiles);
  layout.zeroed_bytes = arena.size_bytes();
  layout.costs = arena.add<std::int32_t>(sum_tiles);
  layout.tiles = arena.add<TileWork>(layout.max_tiles);
  layout.works = arena.add<TileWork>(layout.max_works);
  layout.split_tiles = arena.add<SplitTile>(layout.max_split_tiles);
  layout.begins = arena.add<std::int32_t>(layout.max_tiles);
  layout.sort_keys = arena.add<std::uint64_t>(std::int64_t{2} * layout.max_tiles);
  layout.slice_ids = arena.add<std::int32_t>(shape.record_capacity);
  layout.slices = arena.add<BandRecord>(shape.num_slices + shape.record_capacity);
  layout.records = layout.slices + static_cast<std::size_t>(shape.num_slices) * sizeof(BandRecord);
  layout.size_bytes = arena.size_bytes();
  return layout;
}

}  // namespace magi
