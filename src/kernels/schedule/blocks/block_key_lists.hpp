// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/schedule/blocks/block_lists.hpp"
#include "kernels/schedule/host/backward_list.hpp"

// Builds the backward's k tiles under a block mask on the device, like the lists of the forward:
// for each head of the mask the records of a tile, q block by q block, and the tiles by falling
// number of records. k tiles add to dQ in no order.
//
//   list    k tiles x heads  the records of a tile, which take their place among the head's
//   order   heads            the tiles of a head, longest first
namespace magi {

struct BlockKeyShape {
  BlockGrid grid;
  std::int32_t tile_keys = 128;
  std::int64_t max_records = 0;  ///< of each head of the mask, up to 2^31 - 1
  std::int32_t num_splits = 1;   ///< items that share a k tile of a kv head
  /// Tiles may have rows of several blocks, some not seen: the build marks the seen rows.
  bool marks_seen = false;

  MAGI_HOST_DEVICE std::int32_t num_tiles() const {
    return (grid.rows_k + tile_keys - 1) / tile_keys;
  }
};

/// The most records that a head of any mask needs if it sees each block up to `most_times`.
std::int64_t most_records(const BlockKeyShape& shape, std::int64_t most_times);

/// The places of the parts of a build, in bytes from the workspace's begin.
struct BlockKeyLayout {
  std::size_t counts = 0;        ///< uint64[mask_heads]: records that the heads need
  std::size_t num_bad = 0;       ///< uint32: k tiles with entries above kMostTimes
  std::size_t outcomes = 0;      ///< BackwardOutcome[mask_heads]
  std::size_t seen_queries = 0;  ///< uint32[mask_heads, num_seen_words(rows_q)], if marked
  std::size_t seen_keys = 0;     ///< uint32[mask_heads, num_seen_words(rows_k)], likewise
  std::size_t zeroed_bytes = 0;  ///< the bytes of all above
  std::size_t records = 0;       ///< KeyRecord[mask_heads * max_records]
  std::size_t found = 0;         ///< KeyTile[mask_heads * num_tiles], by place
  std::size_t tiles = 0;         ///< likewise: the lists
  std::size_t size_bytes = 0;
};

BlockKeyLayout block_key_layout(const BlockKeyShape& shape);

/// The words by which a kernel after a build sees whether the lists are valid.
struct BlockKeyOutcome {
  const std::uint64_t* counts = nullptr;
  const std::uint32_t* num_bad = nullptr;
  std::int32_t mask_heads = 0;
  std::int64_t max_records = 0;

  /// The number of records of all heads beyond their room, or else k tiles with entries above
  /// kMostTimes; 0: the lists are valid.
  MAGI_HOST_DEVICE std::int64_t num_beyond() const {
    std::int64_t beyond = 0;
    for (std::int32_t head = 0; head < mask_heads; ++head) {
      const std::int64_t more = static_cast<std::int64_t>(counts[head]) - max_records;
      if (more > 0) beyond += more;
    }
    return beyond > 0 ? beyond : std::int64_t{*num_bad};
  }
  MAGI_HOST_DEVICE bool holds() const { return num_beyond() == 0; }
};
BlockKeyOutcome block_key_outcome(const BlockKeyShape& shape, const BlockKeyLayout& layout,
                                  void* workspace);

/// Enqueues the build into `workspace` (layout.size_bytes, aligned to 256 bytes). If the lists are
/// valid, it leaves the source's error word alone, since that may be the forward's.
void build_block_key_lists(const BlockKeyShape& shape, const BlockKeyLayout& layout,
                           const BlockListSource& source, void* workspace, cudaStream_t stream);

}  // namespace magi
