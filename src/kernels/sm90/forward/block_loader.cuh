// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/forward/block_scheduler.cuh"
#include "kernels/tile/descriptor.cuh"

namespace magi::sm90 {

/// Gathers tiles of keys, unit by unit, into the ring of K and V.
template <ForwardConfig kC>
class TileGatherer {
 public:
  using Load = typename BlockStorage<kC>::Load;

  __device__ __forceinline__ TileGatherer(BlockStorage<kC>& shared,
                                          const BlockForwardParams& params)
      : shared_(shared), params_(params) {}

  /// Finds the units of a tile, the first of which is unit `first` of the load's run. Units that no
  /// list names are loaded from behind the tensor, as zeros: what else stands there may be NaN.
  __device__ __forceinline__ void find_keys(const Load& load, std::int32_t first,
                                            std::int32_t kv_head, GatheredTile& tile) const {
    tile.kv_head = kv_head;
    const std::int32_t* entries = params_.entries + load.entries;
    for (std::int32_t unit = 0; unit < params_.gather.units_per_tile; ++unit) {
      const std::int32_t key = key_of_unit(params_.grid, params_.gather, load.run, first + unit,
                                           [&](std::int32_t i) { return __ldg(entries + i); });
      tile.keys[unit] = key < 0 ? params_.grid.rows_k : key;
    }
  }

  /// The stage that is filled next.
  __device__ __forceinline__ std::uint32_t stage() const { return tiles_.stage(); }

  /// Loads the tile's rows of K or V to `offset` of the ring's memory, that of the present stage.
  template <int kDim>
  __device__ __forceinline__ void load_tile(const CUtensorMap& map, int offset,
                                            const GatheredTile& from) {
    auto& ring = shared_.forward.kv_ring;
    ptx::Mbarrier& full = ring.full.at(tiles_);
    ring.wait_empty(tiles_);
    ptx::mbarrier_arrive_expect(full, kC.keys * kDim * 2);
    std::uint8_t* rows = shared_.forward.kv + offset;
    for (std::int32_t unit = 0; unit < params_.gather.units_per_tile; ++unit) {
#pragma unroll
      for (int panel = 0; panel < kDim / tile::kPanelElements; ++panel) {
        ptx::load_box(rows + panel * kC.keys * tile::kPanelRowBytes, map,
                      {panel * tile::kPanelElements, from.kv_head, from.keys[unit]}, full,
                      ptx::cache_evict_last());
      }
      rows += params_.gather.unit * tile::kPanelRowBytes;
    }
    tiles_.advance();
  }

  /// Hands on a stage as it is.
  __device__ __forceinline__ void skip_tile() {
    shared_.forward.kv_ring.wait_empty(tiles_);
    ptx::mbarrier_arrive(shared_.forward.kv_ring.full.at(tiles_));
    tiles_.advance();
  }

 private:
  BlockStorage<kC>& shared_;
  const BlockForwardParams& params_;
  RingPlace<kC.kv_stages> tiles_;
};

/// The one thread that loads, in the place of Loader and in the same order: an item's Q, and
/// through one ring K of each tile, followed by V of the tile before it.
template <ForwardConfig kC>
class BlockLoader {
  static_assert(kC.stages_out());

 public:
  __device__ __forceinline__ BlockLoader(BlockStorage<kC>& shared, const BlockForwardParams& params)
      : shared_(shared), params_(params), gatherer_(shared, params) {}

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
    flush_values();
  }

 private:
  using Load = typename TileGatherer<kC>::Load;

  __device__ __forceinline__ void load_run(const RunMessage& message, const Load& load) {
    const std::int32_t num_tiles = load.run.num_tiles;
    // Without keys no K load flushes, and the consumers may wait for V before they free Q.
    if (num_tiles == 0) flush_values();
    if ((message.flags & kFirstRun) != 0) load_queries(message);
    for (std::int32_t i = 0; i < num_tiles; ++i) {
      // In shared memory, because the producer has few registers; and before the wait for a stage,
      // so that the list's latency is hidden there.
      GatheredTile& tile = shared_.tiles[present_];
      gatherer_.find_keys(load, i * params_.gather.units_per_tile,
                          message.head_begin / params_.forward.heads_per_kv, tile);
      gatherer_.template load_tile<kC.dim_qk>(params_.forward.k, kC.k_offset(gatherer_.stage()),
                                              tile);
      load_values();
      present_ ^= 1;
      has_value_ = true;
    }
  }

  __device__ __forceinline__ void load_queries(const RunMessage& message) {
    auto& storage = shared_.forward;
    ptx::Mbarrier& full = storage.q_rings[0].full.at(queries_);
    storage.q_rings[0].wait_empty(queries_);
    storage.places[0][place_stage<kC>(queries_)] = {message.token_begin, message.head_begin, -1};
    ptx::mbarrier_arrive_expect(full, kC.q_bytes());
#pragma unroll
    for (int panel = 0; panel < kC.dim_qk / tile::kPanelElements; ++panel) {
      ptx::load_box(storage.q[queries_.stage()] + panel * kC.rows() * tile::kPanelRowBytes,
                    params_.forward.q,
                    {panel * tile::kPanelElements, message.head_begin, message.token_begin}, full,
                    ptx::cache_evict_first());
    }
    queries_.advance();
  }

  /// Fills a pair of stages with V of the last tile alone.
  __device__ __forceinline__ void flush_values() {
    if (!has_value_) return;
    gatherer_.skip_tile();
    load_values();
  }

  __device__ __forceinline__ void load_values() {
    if (!has_value_) return gatherer_.skip_tile();
    gatherer_.template load_tile<kC.dim_v>(params_.forward.v, kC.v_offset(gatherer_.stage()),
                                           shared_.tiles[present_ ^ 1]);
    has_value_ = false;
  }

  BlockStorage<kC>& shared_;
  const BlockForwardParams& params_;
  RingPlace<kMessageStages> message_;
  RingPlace<kC.q_stages> queries_;
  TileGatherer<kC> gatherer_;
  std::int32_t present_ = 0;  ///< the tile whose K is loaded next
  bool has_value_ = false;    ///< V of the tile before is still to be loaded
};

}  // namespace magi::sm90
