// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "kernels/schedule/blocks/block_key_lists.hpp"
#include "kernels/sm90/backward/backward.hpp"
#include "kernels/sm90/backward/blocks/block_dq.hpp"
#include "magi/block_mask.hpp"

namespace magi::sm90 {

/// A backward under a mask of blocks. If blocks of keys are no multiples of a k tile, one run
/// computes dK and dV over lists of keys, and dQ over lists of queries. Otherwise there is a run
/// for each head of the mask and its kv heads, all in the same memory.
struct BlockBackwardCall {
  BlockKeyShape shape;
  BlockKeyLayout layout;          ///< of the lists, which begin the workspace
  std::optional<BlockDqCall> dq;  ///< set if another kernel computes dq
  std::size_t dq_lists = 0;       ///< begin of its lists in the workspace
  std::size_t components = 0;     ///< or begin of int32[q tiles] for dq_convert_kernel
  std::size_t run = 0;            ///< begin of a run's memory
  BackwardState state;            ///< state of a run, without its lists
  std::int64_t workspace_bytes = 0;
};

/// Throws InvalidArgument naming what is not allowed.
BlockBackwardCall block_backward_call(const BackwardArgs& args, const BlockMask& mask,
                                      const BackwardTuning& tuning);

void enqueue_backward(const BackwardArgs& args, const BlockBackwardCall& call,
                      const BlockListSource& source, void* workspace, cudaStream_t stream);

}  // namespace magi::sm90
