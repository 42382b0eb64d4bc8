// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/device/device_backward_list.hpp"

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "cuda/arena.hpp"

namespace magi {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();
/// Most records have one run of semaphore values, some have two; those of small lists may have
/// more.
constexpr std::int64_t kLeastRuns = 1 << 18;
constexpr std::int64_t kRunsPerRecord = 2;

void check_shape(const DeviceBackwardShape& shape) {
  if (shape.num_slices < 0) throw invalid("number of slices", shape.num_slices, "0 or more");
  if (shape.record_capacity < 0 || shape.record_capacity > kMaxInt / kRunsPerRecord) {
    throw invalid("record_capacity", shape.record_capacity, "0 to 2^30 - 1");
  }
}

std::int64_t max_tiles(const DeviceBackwardShape& shape) {
  return most_plain_tiles(shape.problem, shape.tile, shape.num_slices);
}

std::int64_t max_items(const DeviceBackwardShape& shape) {
  return max_tiles(shape) * shape.problem.heads_kv * rule_of(shape).split_counts[kPlainSplits - 1];
}

RowGroups row_groups(std::int32_t rows) {
  RowGroups groups;
  const std::int32_t last = std::max(rows, 1) - 1;
  while ((last >> groups.shift) >= kMostRowGroups) ++groups.shift;
  groups.count = (last >> groups.shift) + 1;
  return groups;
}

/// Adds the parts that are all zero before a build.
void add_zeroed(Arena& arena, DeviceBackwardLayout& layout, const BackwardProblem& problem) {
  arena.add<DeviceBackwardHeader>(1);
  layout.row_ends = arena.add<std::int32_t>(std::int64_t{num_row_words(problem.rows_q)} * kRowBits);
  layout.group_ends = arena.add<std::int32_t>(layout.groups.count);
  layout.tallies = arena.add<TileTally>(std::int64_t{kKeyTilings} * layout.max_tiles);
  layout.group_records = arena.add<std::int32_t>(kKeyTilings * kMostTileGroups);
  layout.longest = arena.add<std::int32_t>(layout.frame.num_components);
  layout.record_ends = arena.add<std::int32_t>(layout.frame.num_components);
  layout.record_begins = arena.add<std::int32_t>(layout.frame.num_components);
  if (!layout.has_bins) layout.cut_bits = arena.add<std::uint32_t>(num_row_words(problem.rows_k));
  layout.seen_keys = arena.add<std::uint32_t>(num_seen_words(problem.rows_k));
  layout.converted_tiles = arena.add<std::int32_t>(layout.frame.num_q_tiles());
  layout.addition_changes = arena.add<std::int32_t>(layout.frame.num_q_tiles() + 4);
  layout.zeroed_bytes = arena.size_bytes();
}

}  // namespace

std::int64_t default_record_capacity(const DeviceBackwardShape& shape) {
  constexpr std::int64_t kAlwaysFits = 1 << 20;
  const std::int64_t tiles = max_tiles(shape);
  const std::int64_t all = std::int64_t{shape.num_slices} * tiles;
  const std::int64_t usual = 4 * (tiles + shape.num_slices);
  return std::min({all, std::max(usual, kAlwaysFits), kMaxInt / kRunsPerRecord});
}

PlainRule rule_of(const DeviceBackwardShape& shape) {
  PlainRule rule = plain_rule(shape.problem, shape.tile, shape.packed_heads, max_tiles(shape));
  rule.may_be_unordered = shape.may_be_unordered;
  return rule;
}

DeviceBackwardLayout device_backward_layout(const DeviceBackwardShape& shape) {
  check_shape(shape);
  const BackwardProblem& problem = shape.problem;
  DeviceBackwardLayout layout;
  layout.frame = plain_list_frame(problem, shape.tile, shape.packed_heads, max_tiles(shape));
  layout.frame.num_components = most_plain_components(problem, shape.num_slices, max_tiles(shape));
  layout.max_tiles = static_cast<std::int32_t>(max_tiles(shape));
  layout.run_capacity = std::max(kRunsPerRecord * shape.record_capacity, kLeastRuns);
  layout.groups = row_groups(problem.rows_q);
  const std::int64_t key_words = num_row_words(problem.rows_k);
  layout.has_bins =
      layout.has_few_tiles() && shape.num_slices <= kMostBinnedSlices && key_words <= kMostCutWords;
  const std::int64_t row_words = num_row_words(problem.rows_q);
  Arena arena;
  add_zeroed(arena, layout, problem);
  layout.num_cut_tiles = arena.add<std::int32_t>(1);
  layout.tile_bits = arena.add<std::uint32_t>(key_words);
  layout.tile_prefix = arena.add<std::int32_t>(key_words);
  layout.begins = arena.add<std::int32_t>(std::int64_t{layout.max_tiles} + 1);
  layout.component_bits = arena.add<std::uint32_t>(row_words);
  layout.covered_bits = arena.add<std::uint32_t>(row_words);
  layout.seen_queries = arena.add<std::uint32_t>(num_seen_words(problem.rows_q));
  layout.component_prefix = arena.add<std::int32_t>(row_words);
  layout.group_counts = arena.add<std::int32_t>(layout.groups.count);
  layout.tile_components = arena.add<std::int32_t>(layout.frame.num_q_tiles());
  layout.tile_semaphores = arena.add<TileSemaphores>(layout.frame.num_q_tiles());
  layout.slices = arena.add<BandRecord>(shape.num_slices);
  if (layout.has_bins) {
    layout.bins =
        arena.add<std::int32_t>(std::int64_t{kKeyTilings} * layout.max_tiles * kBinSlices);
  } else {
    layout.slice_ids = arena.add<std::int32_t>(shape.record_capacity);
  }
  layout.works = arena.add<KeyTile>(layout.max_tiles);
  layout.components = arena.add<std::int32_t>(layout.max_tiles);
  layout.places = arena.add<std::int32_t>(layout.max_tiles);
  layout.items = arena.add<std::int32_t>(max_items(shape));
  layout.sort_keys = arena.add<std::uint64_t>(std::int64_t{2} * layout.max_tiles);
  if (layout.has_few_tiles()) {
    layout.component_keys = arena.add<ComponentKey>(layout.max_tiles);
    layout.by_component = arena.add<std::uint64_t>(layout.max_tiles);
    layout.component_steps = arena.add<std::int32_t>(layout.max_tiles);
  }
  layout.tiles = arena.add<KeyTile>(layout.max_tiles);
  layout.records = arena.add<KeyRecord>(shape.record_capacity);
  layout.marks = arena.add<RecordMark>(shape.record_capacity);
  layout.runs = arena.add<SemaphoreRun>(layout.run_capacity);
  layout.size_bytes = arena.size_bytes();
  return layout;
}

}  // namespace magi
