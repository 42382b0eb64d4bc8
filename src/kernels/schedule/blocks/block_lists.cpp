// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/blocks/block_lists.hpp"

#include "cuda/arena.hpp"

namespace magi {

BlockListLayout block_list_layout(const BlockListShape& shape) {
  Arena arena;
  arena.add<BlockListHeader>(1);
  BlockListLayout layout;
  layout.lists = arena.add<BlockList>(shape.grid.num_lists());
  layout.order = arena.add<std::int32_t>(std::int64_t{shape.grid.heads_kv} * shape.grid.num_q());
  layout.entries = arena.add<std::int32_t>(shape.max_entries);
  layout.size_bytes = arena.size_bytes();
  return layout;
}

}  // namespace magi
