// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kernels/sm90/forward/block_params.hpp"
#include "magi/block_mask.hpp"

namespace magi::sm90 {

/// A forward under a mask of blocks.
struct BlockCall {
  const BlockForwardInstance* instance = nullptr;
  ForwardTuning tuning;
  ForwardList frame;  ///< without tiles and records
  BlockListShape shape;
  BlockListLayout layout;
};

BlockGrid block_grid(const ForwardArgs& args, const BlockMask& mask);

/// Why the kernels do not take a call, empty where they do.
std::string refusal_of_blocks(const ForwardArgs& args, const BlockMask& mask);

/// For a call that they take. Throws InvalidArgument naming what is not allowed.
BlockCall block_call(const ForwardArgs& args, const BlockMask& mask, const ForwardTuning& tuning);

void enqueue_forward(const ForwardArgs& args, const BlockCall& call, const BlockListSource& source,
                     void* workspace, cudaStream_t stream);

}  // namespace magi::sm90
