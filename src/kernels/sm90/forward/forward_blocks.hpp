// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kernels/sm90/forward/block_params.hpp"
#include "magi/block_mask.hpp"

namespace magi::sm90 {

/// The way a mask of blocks is walked, q tile by q tile: the lists of visible k blocks and how
/// queries fall into tiles.
struct BlockWalk {
  ForwardList frame;  ///< without tiles and records
  BlockListShape shape;
  BlockListLayout layout;  ///< of the lists, which begin the workspace
};

/// A forward under a mask of blocks.
struct BlockCall {
  const BlockForwardInstance* instance = nullptr;
  ForwardTuning tuning;
  BlockWalk walk;
};

BlockGrid block_grid(const ForwardArgs& args, const BlockMask& mask);

/// Why q tiles cannot walk a mask, empty where they can.
std::string refusal_of_walk(const ForwardArgs& args, const BlockMask& mask);

/// Tiles of 128 x 128 or, where blocks of queries are no multiples of such, of 64 x 64.
const TileShape& walk_tiles(const ForwardArgs& args, const BlockMask& mask);

/// The walk by such tiles, with so many packed heads, or 0: as few as let tiles divide blocks of
/// queries. Only q, k and v of `args` are read.
BlockWalk block_walk(const ForwardArgs& args, const BlockMask& mask, const TileShape& tiles,
                     std::int32_t packed_heads);

/// The arguments of a launch for it, without outputs; `workspace` holds the lists.
BlockForwardParams walk_params(const ForwardArgs& args, const BlockWalk& walk, void* workspace);

/// Why the kernels do not take a call, empty where they do.
std::string refusal_of_blocks(const ForwardArgs& args, const BlockMask& mask);

/// Prepares a call that they take. Throws InvalidArgument naming what is not allowed.
BlockCall block_call(const ForwardArgs& args, const BlockMask& mask, const ForwardTuning& tuning);

void enqueue_forward(const ForwardArgs& args, const BlockCall& call, const BlockListSource& source,
                     void* workspace, cudaStream_t stream);

}  // namespace magi::sm90
