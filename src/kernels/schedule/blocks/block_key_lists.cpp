// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/blocks/block_key_lists.hpp"

#include <algorithm>

#include "cuda/arena.hpp"

namespace magi {

std::int64_t most_records(const BlockKeyShape& shape, std::int64_t most_times) {
  const BlockGrid& grid = shape.grid;
  std::int64_t per_block = 0;  // of queries, over all k tiles
  for (std::int32_t tile = 0; tile < shape.num_tiles(); ++tile) {
    const std::int32_t begin = tile * shape.tile_keys;
    const std::int32_t end = std::min(begin + shape.tile_keys, grid.rows_k);
    const std::int32_t blocks = (end - 1) / grid.k_block - begin / grid.k_block + 1;
    // Blocks that are all seen once are in one band, unless others lie between.
    per_block += most_times == 1 ? (blocks + 1) / 2 : blocks * most_times;
  }
  return per_block * grid.num_q();
}

BlockKeyLayout block_key_layout(const BlockKeyShape& shape) {
  const std::int64_t num_tiles = std::int64_t{shape.grid.mask_heads} * shape.num_tiles();
  Arena arena;
  BlockKeyLayout layout;
  layout.counts = arena.add<std::uint64_t>(shape.grid.mask_heads);
  layout.num_bad = arena.add<std::uint32_t>(1);
  layout.outcomes = arena.add<BackwardOutcome>(shape.grid.mask_heads);
  if (shape.marks_seen) {
    const std::int64_t heads = shape.grid.mask_heads;
    layout.seen_queries = arena.add<std::uint32_t>(heads * num_seen_words(shape.grid.rows_q));
    layout.seen_keys = arena.add<std::uint32_t>(heads * num_seen_words(shape.grid.rows_k));
  }
  layout.zeroed_bytes = arena.size_bytes();
  layout.records = arena.add<KeyRecord>(shape.grid.mask_heads * shape.max_records);
  layout.found = arena.add<KeyTile>(num_tiles);
  layout.tiles = arena.add<KeyTile>(num_tiles);
  layout.size_bytes = arena.size_bytes();
  return layout;
}

BlockKeyOutcome block_key_outcome(const BlockKeyShape& shape, const BlockKeyLayout& layout,
                                  void* workspace) {
  return {.counts = part_at<const std::uint64_t>(workspace, layout.counts),
          .num_bad = part_at<const std::uint32_t>(workspace, layout.num_bad),
          .mask_heads = shape.grid.mask_heads,
          .max_records = shape.max_records};
}

}  // namespace magi
