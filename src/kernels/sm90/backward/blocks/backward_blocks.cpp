// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/backward/blocks/backward_blocks.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.hpp"
#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "kernels/sm90/conversions.hpp"
#include "kernels/sm90/poison.hpp"

namespace magi::sm90 {
namespace {

constexpr std::int64_t kMostDim = 128;
constexpr std::int32_t kWideTile = 128;  ///< keys

/// Returns the instance with k tiles of 64 keys, for blocks that fill only part of 128.
const BackwardInstance* own_rows_instance_for(DType type) {
  static const std::array kInstances{own_rows_instance(DType::BFloat16),
                                     own_rows_instance(DType::Float16)};
  return &kInstances[type == DType::BFloat16 ? 0 : 1];
}

/// Returns the state without a list. At head dims up to 64 the kernel for k tiles of 128 keys has
/// half of the work of the other, but its additions to dQ have no order.
BackwardState state_for(const BackwardArgs& args, const BlockMask& mask, bool is_deterministic) {
  BackwardState state = backward_state(backward_instances(), args);
  const bool is_part = mask.k_block % kWideTile != 0;  // a block fills part of a k tile
  const bool is_faster = is_part && !state.instance->config.is(KernelForm::Wide);
  if ((is_faster || is_deterministic) && args.params.softcap == 0.0 && can_walk(args, mask)) {
    state.instance = own_rows_instance_for(args.q.dtype);
  }
  return state;
}

/// The part of a tensor that belongs to one of `count` equal runs of heads.
TensorView heads_of(const TensorView& tensor, std::int32_t axis, std::int32_t part,
                    std::int32_t count) {
  if (tensor.rank == 0) return tensor;  // an absent tensor
  const std::int64_t heads = tensor.shape[static_cast<std::size_t>(axis)] / count;
  return tensor.slice(axis, part * heads, (part + 1) * heads);
}

/// The call for one of the mask's heads.
BackwardArgs part_of(const BackwardArgs& args, std::int32_t part, std::int32_t count) {
  if (count == 1) return args;
  BackwardArgs own = args;
  for (TensorView* tensor : {&own.q, &own.k, &own.v, &own.out, &own.lse, &own.dout, &own.dlse,
                             &own.dq, &own.dk, &own.dv}) {
    *tensor = heads_of(*tensor, 1, part, count);
  }
  for (TensorView* tensor : {&own.sink, &own.dsink}) {
    *tensor = heads_of(*tensor, tensor->rank - 1, part, count);
  }
  return own;
}

/// Returns the fewest heads per q tile with which q tiles divide blocks of queries, or 1.
std::int32_t packed_heads_of(std::int32_t heads_per_kv, std::int32_t tile_rows,
                             std::int32_t q_block) {
  constexpr std::int32_t kMostHeads = 16;
  for (std::int32_t heads = 1; heads <= kMostHeads && heads_per_kv % heads == 0; heads *= 2) {
    if (q_block % (tile_rows / heads) == 0) return heads;
  }
  return 1;
}

/// If a run has few k tiles, cuts them into items for parts of the head groups. Under a causal mask
/// many blocks see early keys and few see late ones, so the longest k tile may take twice a
/// multiprocessor's share.
void split_tiles(TileSpan& span, const BackwardProblem& problem) {
  constexpr std::int32_t kItemsPerCta = 4;
  constexpr std::int32_t kBlockTiles = 128;  // whose splits come before those of the next tiles
  while (span.groups_per_item % 2 == 0 && span.item_end < kItemsPerCta * problem.num_ctas) {
    span.num_splits *= 2;
    span.groups_per_item /= 2;
    span.item_end *= 2;
    span.block_tiles = std::min(span.num_tiles, kBlockTiles);
    span.slot_heads = problem.heads_kv;
  }
}

/// Returns the parts of a list that do not depend on the mask's entries. For each kv head every k
/// tile is an item, which walks all query heads and adds to dQ in no order.
BackwardList list_frame(const BackwardArgs& args, const BackwardState& state,
                        const BlockKeyShape& shape, std::int32_t num_sms) {
  BackwardList list;
  list.problem = backward_problem(args, num_sms, {});
  list.shape = tile_shape(state.instance->config);
  const std::int32_t heads_per_kv = list.problem.heads_q / list.problem.heads_kv;
  list.packed_heads = packed_heads_of(heads_per_kv, list.shape.rows, shape.grid.q_block);
  list.tile_tokens = list.shape.rows / list.packed_heads;
  list.head_groups = list.problem.heads_q / list.packed_heads;
  list.is_ordered = false;
  // CTAs that walk the same rows drift apart, as different numbers of query blocks see their keys.
  // The rows in between fit the cache for one head group, not for all heads.
  list.is_group_first = true;
  const std::int32_t num_tiles = shape.num_tiles();
  list.tiles.resize(static_cast<std::size_t>(num_tiles));
  if (num_tiles == 0) return list;
  list.spans = {{.item_end = num_tiles * list.problem.heads_kv,
                 .num_tiles = num_tiles,
                 .groups_per_item = heads_per_kv / list.packed_heads,
                 .block_tiles = num_tiles}};
  if (state.instance->config.makes_dq()) split_tiles(list.spans.front(), list.problem);
  return list;
}

std::int64_t record_capacity(const BlockKeyShape& shape, std::int64_t max_blocks) {
  if (max_blocks == 0) return most_records(shape, 1);
  // The most tiles that a block meets.
  const std::int64_t most_tiles = (shape.grid.k_block + shape.tile_keys - 2) / shape.tile_keys + 1;
  return std::min(max_blocks * most_tiles, most_records(shape, kMostTimes));
}

BlockKeyShape list_shape(const BackwardArgs& args, const BlockMask& mask,
                         const BackwardState& state) {
  constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();
  BlockKeyShape shape;
  shape.grid = {.rows_q = to_int(args.q.shape[0]),
                .rows_k = to_int(args.k.shape[0]),
                .q_block = mask.q_block,
                .k_block = mask.k_block,
                .heads_kv = to_int(args.k.shape[1]),
                .mask_heads = mask.heads,
                .is_causal = mask.is_causal};
  shape.tile_keys = state.instance->config.keys;
  shape.max_records = record_capacity(shape, mask.max_blocks);
  const std::int64_t num_records = mask.heads * shape.max_records;
  if (num_records > kMaxInt) {
    throw invalid("number of records", num_records, "up to 2^31 - 1, by max_blocks");
  }
  return shape;
}

/// Sets which rows somebody sees, from the mask's head `part` on.
void set_seen(BackwardState& state, const BlockBackwardCall& call, void* workspace,
              std::int64_t part) {
  if (!call.shape.marks_seen) return;
  const BlockGrid& grid = call.shape.grid;
  state.parts.seen_queries = part_at<const std::uint32_t>(workspace, call.layout.seen_queries) +
                             part * num_seen_words(grid.rows_q);
  state.parts.seen_keys = part_at<const std::uint32_t>(workspace, call.layout.seen_keys) +
                          part * num_seen_words(grid.rows_k);
}

/// Enqueues a run for each head of the mask.
void enqueue_parts(const BackwardArgs& args, const BlockBackwardCall& call, void* workspace,
                   cudaStream_t stream) {
  const BlockKeyShape& shape = call.shape;
  const std::int32_t num_parts = shape.grid.mask_heads;
  // Any number of components but 0 says that a sum has additions.
  auto* components = part_at<std::int32_t>(workspace, call.components);
  const auto num_q_tiles = static_cast<std::size_t>(call.state.list.num_q_tiles());
  cuda_check(cudaMemsetAsync(components, 1, num_q_tiles * sizeof(std::int32_t), stream),
             "cudaMemsetAsync");
  const auto* tiles = part_at<const KeyTile>(workspace, call.layout.tiles);
  const auto* records = part_at<const KeyRecord>(workspace, call.layout.records);
  for (std::int32_t part = 0; part < num_parts; ++part) {
    BackwardState state = call.state;
    state.parts.tiles = tiles + std::int64_t{part} * shape.num_tiles();
    state.parts.records = records + part * shape.max_records;
    state.parts.outcome = part_at<const BackwardOutcome>(workspace, call.layout.outcomes) + part;
    state.parts.tile_components = components;
    set_seen(state, call, workspace, part);
    enqueue_backward(part_of(args, part, num_parts), state, part_at<std::byte>(workspace, call.run),
                     stream);
  }
}

/// Enqueues one run for all heads, and another kernel for dq.
void enqueue_apart(const BackwardArgs& args, const BlockBackwardCall& call,
                   const BlockListSource& source, void* workspace, cudaStream_t stream) {
  const BlockKeyShape& shape = call.shape;
  auto* dq_lists = part_at<std::byte>(workspace, call.dq_lists);
  build_dq_lists(*call.dq, source, dq_lists, stream);
  BackwardState state = call.state;
  state.parts.tiles = part_at<const KeyTile>(workspace, call.layout.tiles);
  state.parts.records = part_at<const KeyRecord>(workspace, call.layout.records);
  state.parts.outcome = part_at<const BackwardOutcome>(workspace, call.layout.outcomes);
  if (shape.grid.mask_heads > 1) {
    state.parts.tiles_per_list = shape.num_tiles();
    state.parts.records_per_list = to_int(shape.max_records);
  }
  set_seen(state, call, workspace, 0);
  auto* run = part_at<std::byte>(workspace, call.run);
  enqueue_main(args, state, run, stream);
  if (args.q.shape[0] == 0) return;
  enqueue_block_dq(args, *call.dq, prepared_rows(args, state, run), dq_lists, stream);
  const BlockListOutcome outcome{part_at<const BlockListHeader>(dq_lists, 0), call.dq->walk.shape};
  poison_unless_held(outcome, {spoiled_rows(args.dq)}, stream);
}

}  // namespace

BlockBackwardCall block_backward_call(const BackwardArgs& args, const BlockMask& mask,
                                      const BackwardTuning& tuning) {
  const std::int64_t dim = std::max(args.q.shape[2], args.v.shape[2]);
  if (dim > kMostDim) throw invalid("head dim", dim, "up to 128 under a mask of blocks");
  BlockBackwardCall call;
  call.state = state_for(args, mask, tuning.is_deterministic);
  if (tuning.is_deterministic && call.state.instance->config.makes_dq()) {
    throw invalid("is_deterministic", "true",
                  "false with a softcap, and with blocks that the forward does not take");
  }
  call.shape = list_shape(args, mask, call.state);
  const std::int32_t num_sms = count_free_sms(args.q.device, tuning.sm_margin);
  BackwardState& state = call.state;
  const bool makes_dq = state.instance->config.makes_dq();
  const BackwardArgs part = makes_dq ? part_of(args, 0, mask.heads) : args;
  state.list = list_frame(part, state, call.shape, num_sms);
  state.num_ctas = to_int(std::min<std::int64_t>(state.list.num_items(), num_sms));
  if (!state.list.spans.empty()) call.shape.num_splits = state.list.spans.front().num_splits;
  call.shape.marks_seen =
      mask.k_block % call.shape.tile_keys != 0 || mask.q_block % state.list.tile_tokens != 0;
  call.layout = block_key_layout(call.shape);
  Arena arena;
  arena.add<std::byte>(static_cast<std::int64_t>(call.layout.size_bytes));
  if (makes_dq) {
    call.components = arena.add<std::int32_t>(state.list.num_q_tiles());
  } else {
    call.dq = block_dq_call(args, mask, tuning.sm_margin);
    call.dq_lists =
        arena.add<std::byte>(static_cast<std::int64_t>(call.dq->walk.layout.size_bytes));
  }
  call.run = arena.size_bytes();
  call.workspace_bytes = static_cast<std::int64_t>(call.run + backward_layout(state).size_bytes);
  return call;
}

void enqueue_backward(const BackwardArgs& args, const BlockBackwardCall& call,
                      const BlockListSource& source, void* workspace, cudaStream_t stream) {
  build_block_key_lists(call.shape, call.layout, source, workspace, stream);
  if (call.dq) {
    enqueue_apart(args, call, source, workspace, stream);
  } else {
    enqueue_parts(args, call, workspace, stream);
  }
  poison_unless_held(block_key_outcome(call.shape, call.layout, workspace),
                     {spoiled_rows(args.dq), spoiled_rows(args.dk), spoiled_rows(args.dv)}, stream);
}

}  // namespace magi::sm90
