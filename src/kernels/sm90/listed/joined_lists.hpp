// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/sm90/listed/params.hpp"

// Lists of neighbouring queries that have few query heads: one tile takes the heads of several
// queries and the union of their lists, so that a key which several of them see is gathered once.
namespace magi::sm90 {

/// Runs with as many queries as memory for their lists holds.
struct JoinedLayout {
  std::int32_t queries = 1;   ///< of a tile; 1 where lists are not joined: there is no layout
  std::int32_t rows = 0;      ///< of q, of a run: a multiple of a tile's queries
  std::int32_t max_keys = 0;  ///< see JoinedLists
  std::size_t keys = 0;
  std::size_t seen = 0;
  std::size_t num_tiles = 0;
  std::size_t size_bytes = 0;
};
/// `tile_rows`: that a tile has for the query heads of its queries.
JoinedLayout joined_layout(const TensorView& q, const TensorView& k, const ListedIndices& lists,
                           std::int32_t tile_rows);

/// The lists in memory of a layout.
JoinedLists joined_lists(const JoinedLayout& layout, void* memory);

/// Enqueues the union of the lists of rows [first_row, end_row) and adds to the report what is no
/// block. Where a list names a key twice, the tile's lists follow each other instead.
void enqueue_joined_lists(const ListedShape& shape, const ListedIndices& lists,
                          std::int32_t first_row, std::int32_t end_row, const JoinedLists& joined,
                          cudaStream_t stream);

}  // namespace magi::sm90
