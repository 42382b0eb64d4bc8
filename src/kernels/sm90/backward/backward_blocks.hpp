// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/backward.hpp"
#include "kernels/worklist/block_key_lists.hpp"
#include "magi/block_mask.hpp"

namespace magi::sm90 {

/// A backward under a mask of blocks: a run for each head of the mask, over the kv heads that it is
/// for, each with the same memory.
struct BlockBackwardCall {
  BlockKeyShape shape;
  BlockKeyLayout layout;       ///< of the lists, which begin the workspace
  std::size_t components = 0;  ///< behind them int32[q tiles] for the converting kernel
  std::size_t run = 0;         ///< behind those the memory of a run
  BackwardState state;         ///< of a run, without its lists
  std::int64_t workspace_bytes = 0;
};

/// Throws InvalidArgument naming what is not allowed.
BlockBackwardCall block_backward_call(const BackwardArgs& args, const BlockMask& mask,
                                      const BackwardTuning& tuning);

void enqueue_backward(const BackwardArgs& args, const BlockBackwardCall& call,
                      const BlockListSource& source, void* workspace, cudaStream_t stream);

}  // namespace magi::sm90
