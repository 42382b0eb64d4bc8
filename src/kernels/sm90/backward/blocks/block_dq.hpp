// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/backward.hpp"
#include "kernels/sm90/backward/blocks/block_dq_params.hpp"
#include "kernels/sm90/forward/forward_blocks.hpp"

namespace magi::sm90 {

/// The computation of dq under a mask of blocks, if the main kernel makes none.
struct BlockDqCall {
  const BlockDqInstance* instance = nullptr;
  BlockWalk walk;
  std::int32_t sm_margin = 0;
};

/// Whether q tiles can walk the mask.
bool can_walk(const BackwardArgs& args, const BlockMask& mask);

/// Returns the call, if can_walk: for head dims up to 128 and no softcap.
BlockDqCall block_dq_call(const BackwardArgs& args, const BlockMask& mask, std::int32_t sm_margin);

/// Enqueues the making of the lists, into `workspace` (walk.layout.size_bytes).
void build_dq_lists(const BlockDqCall& call, BlockListSource source, void* workspace,
                    cudaStream_t stream);

/// Enqueues the kernel, after the main one of the same run. It starts while that one ends, which
/// has waited for the lists and for `rows`.
void enqueue_block_dq(const BackwardArgs& args, const BlockDqCall& call, const PreparedRows& rows,
                      void* workspace, cudaStream_t stream);

}  // namespace magi::sm90
