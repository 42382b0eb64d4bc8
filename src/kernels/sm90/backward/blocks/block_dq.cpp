// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/backward/blocks/block_dq.hpp"

#include <algorithm>

#include "cuda/tensor_map.hpp"
#include "kernels/sm90/conversions.hpp"

namespace magi::sm90 {
namespace {

/// Returns the forward's arguments for the same inputs, from which walks are made.
ForwardArgs inputs_of(const BackwardArgs& args) {
  ForwardArgs inputs;
  inputs.q = args.q;
  inputs.k = args.k;
  inputs.v = args.v;
  inputs.params = args.params;
  return inputs;
}

}  // namespace

bool can_walk(const BackwardArgs& args, const BlockMask& mask) {
  return refusal_of_walk(inputs_of(args), mask).empty();
}

BlockDqCall block_dq_call(const BackwardArgs& args, const BlockMask& mask, std::int32_t sm_margin) {
  const ForwardArgs inputs = inputs_of(args);
  const std::int32_t rows = walk_tiles(inputs, mask).rows;
  BlockDqCall call{.instance = &block_dq_instance(args.q.dtype, rows), .sm_margin = sm_margin};
  const TileShape tiles{.rows = rows, .keys = call.instance->config.keys, .trimmed_keys = 0};
  call.walk = block_walk(inputs, mask, tiles, 0);
  call.walk.shape.max_runs = 0;  // the bound holds for the forward's memory only
  return call;
}

void build_dq_lists(const BlockDqCall& call, BlockListSource source, void* workspace,
                    cudaStream_t stream) {
  source.keeps_word = true;  // it may be the forward's word
  build_block_lists(call.walk.shape, call.walk.layout, source, workspace, stream);
}

void enqueue_block_dq(const BackwardArgs& args, const BlockDqCall& call, const PreparedRows& rows,
                      void* workspace, cudaStream_t stream) {
  const BlockWalk& walk = call.walk;
  BlockDqParams params;
  params.walk = walk_params(inputs_of(args), walk, workspace);
  params.dout = make_tensor_map(rows.dout, {walk.frame.packed_heads, walk.frame.tile_tokens});
  params.packed = rows.packed;
  params.lse_log2 = rows.lse_log2;
  params.delta = rows.delta;
  params.dq = strided_rows(args.dq);
  params.dim = to_int(args.q.shape[2]);
  params.is_adding = args.is_accumulating;
  const std::int32_t num_ctas =
      count_free_sms(args.q.device, call.sm_margin) * call.instance->config.ctas_per_sm();
  call.instance->launch(params, std::min(num_ctas, params.walk.num_items), stream);
}

}  // namespace magi::sm90
