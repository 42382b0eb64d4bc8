// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/blocks/block_dq_params.hpp"
#include "kernels/sm90/forward/block_loader.cuh"

namespace magi::sm90 {

/// The one thread that loads an item's Q and dO, both through the ring of Q, and K and V of tiles.
template <ForwardConfig kC>
class BlockDqLoader {
  static_assert(kC.q_stages >= 2 && kC.dim_qk == kC.dim_v);

 public:
  __device__ __forceinline__ BlockDqLoader(BlockStorage<kC>& shared, const BlockDqParams& params)
      : shared_(shared), params_(params), gatherer_(shared, params.walk) {}

  __device__ __forceinline__ void run() {
    auto& ring = shared_.forward.message_ring;
    while (true) {
      ring.wait_full(message_);
      const RunMessage& message = shared_.forward.messages[message_.stage()];
      if ((message.flags & kEndOfItems) != 0) break;
      load_run(message, shared_.loads[message_.stage()]);
      ptx::mbarrier_arrive(ring.empty.at(message_));
      message_.advance();
    }
  }

 private:
  using Load = typename TileGatherer<kC>::Load;

  __device__ __forceinline__ void load_run(const RunMessage& message, const Load& load) {
    const std::int32_t num_tiles = message.num_tiles;
    if (num_tiles > 0 && (message.flags & kFirstRun) != 0) {
      load_rows(params_.walk.forward.q, message);
      load_rows(params_.dout, message);
    }
    const std::int32_t kv_head = message.head_begin / params_.walk.forward.heads_per_kv;
    for (std::int32_t i = 0; i < num_tiles; ++i) {
      // In shared memory, because the producer has few registers.
      GatheredTile& tile = shared_.tiles[0];
      gatherer_.find_keys(load, i * params_.walk.gather.units_per_tile, kv_head, tile);
      load_tile(params_.walk.forward.k, tile);
      load_tile(params_.walk.forward.v, tile);
    }
  }

  __device__ __forceinline__ void load_tile(const CUtensorMap& map, const GatheredTile& tile) {
    gatherer_.template load_tile<kC.dim_qk>(map, kC.k_offset(gatherer_.stage()), tile);
  }

  /// Loads the rows of Q or of dO.
  __device__ __forceinline__ void load_rows(const CUtensorMap& map, const RunMessage& message) {
    auto& storage = shared_.forward;
    ptx::Mbarrier& full = storage.q_rings[0].full.at(queries_);
    storage.q_rings[0].wait_empty(queries_);
    ptx::mbarrier_arrive_expect(full, kC.q_bytes());
#pragma unroll
    for (int panel = 0; panel < kC.dim_qk / tile::kPanelElements; ++panel) {
      ptx::load_box(storage.q[queries_.stage()] + panel * kC.rows() * tile::kPanelRowBytes, map,
                    {panel * tile::kPanelElements, message.head_begin, message.token_begin}, full,
                    ptx::cache_evict_first());
    }
    queries_.advance();
  }

  BlockStorage<kC>& shared_;
  const BlockDqParams& params_;
  RingPlace<kMessageStages> message_;
  RingPlace<kC.q_stages> queries_;
  TileGatherer<kC> gatherer_;
};

}  // namespace magi::sm90
