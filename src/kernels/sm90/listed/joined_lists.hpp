// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/sm90/listed/params.hpp"

// Joined lists, for calls with few query heads per kv head. A tile has the heads of several
// neighbouring queries and the union of their lists, so that it gathers a key once for all of them.
namespace magi::sm90 {

/// The workspace of joined lists, for runs of as many queries as it holds lists for.
struct JoinedLayout {
  std::int32_t queries = 1;  ///< queries of a tile; 1: lists are not joined, and there is no layout
  std::int32_t rows = 0;     ///< rows of q in a run: a multiple of a tile's queries
  std::int32_t max_keys = 0;  ///< see JoinedLists
  std::size_t keys = 0;
  std::size_t seen = 0;
  std::size_t num_tiles = 0;
  std::size_t size_bytes = 0;
};
/// `tile_rows`: rows of a tile, for the query heads of its queries.
JoinedLayout joined_layout(const TensorView& q, const TensorView& k, const ListedIndices& lists,
                           std::int32_t tile_rows);

/// Returns the lists in memory of this layout.
JoinedLists joined_lists(const JoinedLayout& layout, void* memory);

/// Enqueues the union of the lists of rows [first_row, end_row), and adds entries that name no
/// block to the report. If a list names a key twice, the tile's lists follow each other instead.
void enqueue_joined_lists(const ListedShape& shape, const ListedIndices& lists,
                          std::int32_t first_row, std::int32_t end_row, const JoinedLists& joined,
                          cudaStream_t stream);

}  // namespace magi::sm90
