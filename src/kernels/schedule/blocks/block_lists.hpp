// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/schedule/blocks/block_grid.hpp"

// Builds lists of the visible k blocks of each q block on the device, from a block mask in device
// memory that the host does not see: the host does not wait, so a graph can capture the build.
//
//   list    lists     the entries of each; a list takes its place among all by a counter
//   order   sections  (kv head, q block) by falling length: sections of kv heads, each in a CTA
namespace magi {

/// Entries of `visible` say how often a block sees another: at most this often.
inline constexpr std::int32_t kMostTimes = 254;

/// The begin of the workspace. All zero before a build.
struct BlockListHeader {
  std::uint64_t num_entries = 0;    ///< needed by the lists
  std::uint64_t num_runs = 0;       ///< runs of neighbouring blocks of all lists
  std::uint32_t num_bad_lists = 0;  ///< with entries above kMostTimes
  unsigned ticket = 0;              ///< of the forward kernel
};

struct BlockListShape {
  BlockGrid grid;
  std::int32_t section_heads = 1;  ///< kv heads walked at a time
  std::int64_t max_entries = 0;    ///< over all lists, up to 2^31 - 1
  std::int64_t max_runs = 0;       ///< over all lists; 0: any
};

/// The number of entries or runs beyond the room, or bad lists; 0: the lists are valid.
MAGI_HOST_DEVICE std::int64_t num_beyond(const BlockListHeader& header,
                                         const BlockListShape& shape) {
  const std::int64_t entries = static_cast<std::int64_t>(header.num_entries) - shape.max_entries;
  const std::int64_t runs =
      shape.max_runs > 0 ? static_cast<std::int64_t>(header.num_runs) - shape.max_runs : 0;
  if (runs > 0) return runs;
  return entries > 0 ? entries : header.num_bad_lists;
}

/// The words by which a kernel after a build sees whether the lists are valid.
struct BlockListOutcome {
  const BlockListHeader* header = nullptr;
  BlockListShape shape;

  MAGI_HOST_DEVICE bool holds() const { return num_beyond(*header, shape) == 0; }
};

/// The inputs of a build, and the error word that it writes for the caller.
struct BlockListSource {
  const std::uint8_t* visible = nullptr;  ///< [mask_heads, q blocks, k blocks]
  std::int64_t* error_word = nullptr;     ///< null, or [2]: num_beyond and -1
  bool keeps_word = false;                ///< valid lists leave the word as it is
};

/// The places of the parts of a build, in bytes from the workspace's begin.
struct BlockListLayout {
  std::size_t lists = 0;    ///< BlockList[num_lists]
  std::size_t order = 0;    ///< int32[heads_kv * q blocks]: kv_head * q blocks + q block
  std::size_t entries = 0;  ///< int32[max_entries]
  std::size_t size_bytes = 0;
};

BlockListLayout block_list_layout(const BlockListShape& shape);

/// Enqueues the build into `workspace` (layout.size_bytes, aligned to 256 bytes).
void build_block_lists(const BlockListShape& shape, const BlockListLayout& layout,
                       const BlockListSource& source, void* workspace, cudaStream_t stream);

}  // namespace magi
