// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/forward/forward_blocks.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.hpp"
#include "cuda/arena.hpp"
#include "cuda/tensor_map.hpp"
#include "kernels/sm90/conversions.hpp"
#include "kernels/sm90/forward/forward.hpp"
#include "kernels/sm90/poison.hpp"

namespace magi::sm90 {
namespace {

constexpr TileShape kWideTiles{.rows = 128, .keys = 128, .trimmed_keys = 64};
/// Halves tiles if blocks of queries are no multiples of the others: keys are read for half as many
/// rows.
constexpr TileShape kNarrowTiles{.rows = 64, .keys = 64, .trimmed_keys = 0};
constexpr std::int32_t kLeastUnit = 16;     ///< keys: smaller boxes cost more than their products
constexpr std::int32_t kRowsPerStore = 16;  // a warp stores its own rows
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();

/// Query heads per tile: as few as let tiles of rows divide blocks of queries. 0: none do.
std::int32_t packed_heads_of(const ForwardProblem& problem, const TileShape& tiles,
                             std::int32_t q_block) {
  for (const std::int32_t heads : allowed_packed_heads(problem, tiles)) {
    if (q_block % (tiles.rows / heads) == 0) return heads;
  }
  return 0;
}

const TileShape& tiles_of(const ForwardProblem& problem, std::int32_t q_block) {
  return packed_heads_of(problem, kWideTiles, q_block) != 0 ? kWideTiles : kNarrowTiles;
}

std::int32_t checked_packing(const ForwardProblem& problem, const TileShape& tiles,
                             std::int32_t q_block, std::int32_t packed_heads) {
  if (packed_heads == 0) return packed_heads_of(problem, tiles, q_block);
  const bool divides = packed_heads > 0 && tiles.rows % packed_heads == 0 &&
                       q_block % (tiles.rows / packed_heads) == 0;
  if (!divides) {
    throw invalid("packed_heads", packed_heads,
                  "0, or h where " + std::to_string(tiles.rows) + " / h divides blocks of queries");
  }
  return packed_heads;
}

BlockListShape list_shape(const ForwardArgs& args, const BlockMask& mask,
                          const ForwardList& frame) {
  BlockListShape shape;
  shape.grid = block_grid(args, mask);
  const BlockGrid& grid = shape.grid;
  shape.section_heads = frame.groups_per_section / (frame.head_groups / frame.problem.heads_kv);
  const std::int64_t all = std::int64_t{grid.num_lists()} * grid.num_k();
  shape.max_entries = mask.max_blocks == 0 ? all : mask.heads * mask.max_blocks;
  if (shape.max_entries > kMaxInt) {
    throw invalid("number of blocks", shape.max_entries, "up to 2^31 - 1, by max_blocks");
  }
  shape.max_runs = mask.max_runs;
  return shape;
}

/// The tensors that a launch writes.
void set_results(ForwardParams& params, const ForwardArgs& args) {
  if (args.out.dtype == DType::Float32) {
    params.out_float = strided_rows(args.out);
  } else {
    params.out =
        make_tensor_map(args.out, {params.packed_heads, kRowsPerStore / params.packed_heads});
    params.out_half = strided_rows(args.out);
  }
  params.lse = strided_rows(args.lse);
  params.sink = sink_rows(args.sink, args.params.sink_layout);
  params.is_merging = args.is_merging;
}

/// The tensors that it reads, and how queries fall into tiles.
ForwardParams input_params(const ForwardArgs& args, const BlockWalk& walk,
                           const GatherShape& gather) {
  const ForwardList& frame = walk.frame;
  ForwardParams params;
  params.q = make_tensor_map(args.q, {frame.packed_heads, frame.tile_tokens});
  // Without keys no tile is loaded; a descriptor needs some address all the same.
  const bool has_keys = args.k.shape[0] > 0;
  params.k = make_tensor_map(has_keys ? args.k : args.q, {1, gather.unit});
  params.v = make_tensor_map(has_keys ? args.v : args.q, {1, gather.unit});
  params.tile_tokens = frame.tile_tokens;
  params.packed_heads = frame.packed_heads;
  params.packed_shift = std::countr_zero(static_cast<unsigned>(frame.packed_heads));
  params.heads_per_kv = frame.problem.heads_q / frame.problem.heads_kv;
  params.rows_q = frame.problem.rows_q;
  params.dim_v = frame.problem.dim_v;
  params.score = score_scale(args.params, args.q.shape[2]);
  return params;
}

}  // namespace

BlockGrid block_grid(const ForwardArgs& args, const BlockMask& mask) {
  return {.rows_q = to_int(args.q.shape[0]),
          .rows_k = to_int(args.k.shape[0]),
          .q_block = mask.q_block,
          .k_block = mask.k_block,
          .heads_kv = to_int(args.k.shape[1]),
          .mask_heads = mask.heads,
          .is_causal = mask.is_causal};
}

std::string refusal_of_walk(const ForwardArgs& args, const BlockMask& mask) {
  if (mask.k_block % kLeastUnit != 0) {
    return "k_block is " + std::to_string(mask.k_block) + "; allowed: multiples of 16";
  }
  const ForwardProblem problem = forward_problem(args);
  if (packed_heads_of(problem, tiles_of(problem, mask.q_block), mask.q_block) == 0) {
    return "q_block is " + std::to_string(mask.q_block) + " with " +
           std::to_string(args.q.shape[1] / args.k.shape[1]) +
           " query heads of a kv head; allowed: multiples of 64 / h for a power of two h up to 16 "
           "that divides them";
  }
  return {};
}

const TileShape& walk_tiles(const ForwardArgs& args, const BlockMask& mask) {
  return tiles_of(forward_problem(args), mask.q_block);
}

BlockWalk block_walk(const ForwardArgs& args, const BlockMask& mask, const TileShape& tiles,
                     std::int32_t packed_heads) {
  const ForwardProblem problem = forward_problem(args);
  BlockWalk walk;
  walk.frame = forward_list_frame(problem, tiles,
                                  checked_packing(problem, tiles, mask.q_block, packed_heads));
  walk.shape = list_shape(args, mask, walk.frame);
  walk.layout = block_list_layout(walk.shape);
  return walk;
}

BlockForwardParams walk_params(const ForwardArgs& args, const BlockWalk& walk, void* workspace) {
  const BlockGrid& grid = walk.shape.grid;
  const ForwardList& frame = walk.frame;
  BlockForwardParams params;
  params.grid = grid;
  params.gather = gather_shape(grid.k_block, frame.shape.keys);
  params.forward = input_params(args, walk, params.gather);
  auto* header = part_at<BlockListHeader>(workspace, 0);
  params.ticket = &header->ticket;
  params.lists = part_at<const BlockList>(workspace, walk.layout.lists);
  params.order = part_at<const std::int32_t>(workspace, walk.layout.order);
  params.entries = part_at<const std::int32_t>(workspace, walk.layout.entries);
  params.tiles_per_block = (grid.q_block - 1) / frame.tile_tokens + 1;
  params.groups_per_block = params.forward.heads_per_kv / frame.packed_heads;
  const std::int64_t num_items =
      std::int64_t{grid.heads_kv} * grid.num_q() * params.tiles_per_block * params.groups_per_block;
  if (num_items > kMaxItems) throw invalid("number of work items", num_items, "up to 2^31 - 1025");
  params.num_items = to_int(num_items);
  return params;
}

std::string refusal_of_blocks(const ForwardArgs& args, const BlockMask& mask) {
  const FeatureSet features = feature_set_of(args);
  if (features == FeatureSet::General) return "a call has softcap or max_logits; allowed: neither";
  if (find_block_forward_instance(args.q.dtype, to_int(args.q.shape[2]), to_int(args.v.shape[2]),
                                  features, kWideTiles.rows) == nullptr) {
    return "a head dim is " + std::to_string(std::max(args.q.shape[2], args.v.shape[2])) +
           "; allowed: up to 128, in bfloat16 or float16";
  }
  return refusal_of_walk(args, mask);
}

BlockCall block_call(const ForwardArgs& args, const BlockMask& mask, const ForwardTuning& tuning) {
  BlockCall call{.tuning = tuning};
  const TileShape& tiles = walk_tiles(args, mask);
  call.instance =
      find_block_forward_instance(args.q.dtype, to_int(args.q.shape[2]), to_int(args.v.shape[2]),
                                  feature_set_of(args), tiles.rows);
  MAGI_CHECK(call.instance != nullptr);
  call.walk = block_walk(args, mask, tiles, tuning.packed_heads);
  return call;
}

void enqueue_forward(const ForwardArgs& args, const BlockCall& call, const BlockListSource& source,
                     void* workspace, cudaStream_t stream) {
  const BlockWalk& walk = call.walk;
  build_block_lists(walk.shape, walk.layout, source, workspace, stream);
  if (args.q.shape[0] == 0) return;
  BlockForwardParams params = walk_params(args, walk, workspace);
  set_results(params.forward, args);
  const std::int32_t num_ctas =
      count_free_sms(args.q.device, call.tuning.sm_margin) * call.instance->config.ctas_per_sm();
  call.instance->launch(params, std::min(num_ctas, params.num_items), stream);
  poison_unless_held(BlockListOutcome{part_at<const BlockListHeader>(workspace, 0), walk.shape},
                     {spoiled_rows(args.out), spoiled_rows(args.lse)}, stream);
}

}  // namespace magi::sm90
