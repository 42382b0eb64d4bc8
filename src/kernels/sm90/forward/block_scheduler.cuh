// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/forward/block_params.hpp"
#include "kernels/sm90/forward/shared.cuh"

namespace magi::sm90 {

/// The places that the units of a k tile are loaded from.
struct GatheredTile {
  static constexpr int kMostUnits = 8;
  std::int32_t keys[kMostUnits];
  std::int32_t kv_head;
};

/// The item whose list is cut. Like GatheredTile in shared memory: producers have few registers.
struct BlockItem {
  std::int32_t token;  ///< first of the q tile
  std::int32_t head;   ///< first of the q tile
  BlockList list;
};

template <ForwardConfig kC>
struct BlockStorage {
  SharedStorage<kC> forward;
  /// The run and list entries that the loader gathers for a message.
  struct Load {
    BlockRun run;
    std::int32_t entries;
  } loads[kMessageStages];
  GatheredTile tiles[2];  ///< the loader's current tile and the one before
  BlockItem item;         ///< the scheduler's item
};

/// The one thread that takes items and cuts their lists into runs, instead of Scheduler.
template <ForwardConfig kC>
class BlockScheduler {
 public:
  __device__ __forceinline__ BlockScheduler(BlockStorage<kC>& shared,
                                            const BlockForwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    for (std::int32_t ticket = take_ticket(); ticket < params_.num_items;) {
      const std::int32_t item = ticket;
      ticket = take_ticket();
      run_item(item);
    }
    send({.flags = kEndOfItems}, {});
  }

 private:
  /// Draws a ticket, like Scheduler.
  __device__ __forceinline__ std::int32_t take_ticket() const {
    const auto limit = static_cast<unsigned>(params_.num_items) + gridDim.x - 1;
    return static_cast<std::int32_t>(atomicInc(params_.ticket, limit));
  }

  /// Runs an item. Items of a q block and kv head, which read the same keys, are neighbours.
  __device__ __forceinline__ void run_item(std::int32_t item) {
    const std::int32_t per_block = params_.tiles_per_block * params_.groups_per_block;
    const std::int32_t place = item / per_block;
    const std::int32_t inside = item - place * per_block;
    const std::int32_t group = inside / params_.tiles_per_block;
    const std::int32_t task = __ldg(params_.order + place);
    const std::int32_t num_q = params_.grid.num_q();
    const std::int32_t kv_head = task / num_q;
    const std::int32_t block = task - kv_head * num_q;
    BlockItem& at = shared_.item;
    at.token = block * params_.grid.q_block +
               (inside - group * params_.tiles_per_block) * params_.forward.tile_tokens;
    if (at.token >= params_.forward.rows_q) return;
    at.head = (kv_head * params_.groups_per_block + group) * params_.forward.packed_heads;
    at.list = params_.lists[params_.grid.list_of(kv_head, block)];
    walk();
  }

  __device__ __forceinline__ void walk() {
    const BlockItem& at = shared_.item;
    bool is_first = true;
    for_each_block_run(
        params_.grid, params_.gather, at.token,
        min(at.token + params_.forward.tile_tokens, params_.forward.rows_q), at.list.count,
        [&](std::int32_t i) { return __ldg(params_.entries + at.list.begin + i); },
        [&](const BlockRun& run) {
          send_run(run, is_first);
          is_first = false;
        });
    if (!is_first) return;
    send({.token_begin = at.token, .head_begin = at.head, .flags = kFirstRun | kLastRun}, {});
  }

  __device__ __forceinline__ void send_run(const BlockRun& run, bool is_first) {
    const bool is_masked = run.is_masked != 0;
    const bool is_last = run.is_last != 0;
    const std::int32_t column = run.first_column(params_.gather);
    const bool is_short = is_masked && is_last && !is_first && kC.trimmed_keys > 0 &&
                          run.key_end - column <= kC.trimmed_keys;
    send({.token_begin = shared_.item.token,
          .head_begin = shared_.item.head,
          .num_tiles = run.num_tiles - (is_short ? 1 : 0),
          .flags =
              (is_first ? kFirstRun : 0) | (is_last ? kLastRun : 0) | (is_short ? kShortTile : 0),
          .k_end = column + (is_short ? kC.trimmed_keys : kC.keys),
          .full_begin = 0,
          .full_end = is_masked ? 0 : run.num_tiles,
          .q0 = 0,
          .q1 = params_.forward.rows_q,
          .k0 = column,
          .k1 = run.key_end,
          .d_min = -kUnbounded,
          .d_max = params_.grid.is_causal ? params_.grid.rows_k - params_.grid.rows_q : kUnbounded},
         run);
  }

  __device__ __forceinline__ void send(const RunMessage& message, const BlockRun& run) {
    auto& ring = shared_.forward.message_ring;
    ring.wait_empty(place_);
    shared_.forward.messages[place_.stage()] = message;
    shared_.loads[place_.stage()] = {run, shared_.item.list.begin};
    ptx::mbarrier_arrive(ring.full.at(place_));
    place_.advance();
  }

  static constexpr std::int32_t kUnbounded = 1 << 30;

  BlockStorage<kC>& shared_;
  const BlockForwardParams& params_;
  RingPlace<kMessageStages> place_;  ///< where the next message goes
};

}  // namespace magi::sm90
