// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/listed/backward_shared.cuh"
#include "kernels/sm90/listed/gather.cuh"
#include "kernels/sm90/listed/item_list.cuh"

namespace magi::sm90 {

/// One of four warps that load an item's Q and dO, and K and V of each tile.
template <ListedConfig kC>
class ListedBackwardProducer {
 public:
  __device__ __forceinline__ ListedBackwardProducer(ListedBackwardStorage<kC>& shared,
                                                    const ListedBackwardParams& params)
      : shared_(shared), params_(params), list_(params) {}

  __device__ __forceinline__ void run() {
    for (auto i = static_cast<std::int32_t>(blockIdx.x); i < params_.shape.num_items;
         i += static_cast<std::int32_t>(gridDim.x)) {
      load_item(ListedItem(params_.shape, i));
    }
  }

 private:
  __device__ __forceinline__ void load_item(const ListedItem& item) {
    const int num_tiles = list_.open(item, false);
    if (num_tiles == 0) return load_queries(item, 0);
    const StridedRows k = rows_of_head(params_.k, item.kv_head);
    const StridedRows v = rows_of_head(params_.v, item.kv_head);
    const bool is_loading = rows_.lane() < kC.keys_per_warp();
    std::int32_t position = rows_.warp() * kC.keys_per_warp() + rows_.lane();
    std::int32_t entry = list_.entry_at(position);
    for (int i = 0; i < num_tiles; ++i) {
      const std::int32_t key = is_loading ? list_.key_of(entry, position) : kNoKey;
      const std::int32_t target = target_of(item, key, position);
      position += kC.keys;
      entry = list_.entry_at(position);
      load_tile(k, v, i, {key, target});
      // The first keys are loaded before Q and dO, whose buffers wait for the previous item to end.
      if (i == 0) load_queries(item, num_tiles);
    }
  }

  /// Returns the row of dk and dv for a key's gradients.
  __device__ __forceinline__ std::int32_t target_of(const ListedItem& item, std::int32_t key,
                                                    std::int32_t position) const {
    if constexpr (!kC.has_parts) return key;
    const std::int32_t list = item.row * params_.shape.head_groups + item.group;
    return key == kNoKey ? kNoKey : list * params_.lists.num_positions + position;
  }

  __device__ __forceinline__ void load_queries(const ListedItem& item, int num_tiles) {
    shared_.q_ring.wait_empty(queries_);
    if (threadIdx.x == 0) shared_.num_tiles = num_tiles;
    const ListedShape& shape = params_.shape;
    rows_.template copy_heads<kC>(shared_.q, params_.q, item, shape, shape.dim_qk);
    rows_.template copy_heads<kC>(shared_.dout, params_.dout, item, shape, shape.dim_v);
    rows_.hand_over(shared_.q_ring.full.at(queries_));
    queries_.advance();
  }

  /// The lane's key of a tile, and the row of its gradients.
  struct TileKey {
    std::int32_t key;
    std::int32_t target;
  };
  __device__ __forceinline__ void load_tile(const StridedRows& k, const StridedRows& v,
                                            int tile_idx, const TileKey& own) {
    const std::uint32_t stage = tiles_.stage();
    shared_.k_ring.wait_empty(tiles_);
    list_.put_mask(shared_.is_key[stage], tile_idx, own.key);
    if (rows_.lane() < kC.keys_per_warp()) {
      shared_.keys[stage][rows_.warp() * kC.keys_per_warp() + rows_.lane()] = own.target;
    }
    rows_.template copy_rows<kC.keys>(shared_.k[stage], k, own.key, params_.shape.dim_qk);
    rows_.hand_over(shared_.k_ring.full.at(tiles_));
    shared_.v_ring.wait_empty(tiles_);
    rows_.template copy_rows<kC.keys>(shared_.v[stage], v, own.key, params_.shape.dim_v);
    rows_.hand_over(shared_.v_ring.full.at(tiles_));
    tiles_.advance();
  }

  ListedBackwardStorage<kC>& shared_;
  const ListedBackwardParams& params_;
  ItemList<kC> list_;
  const RowGatherer<kC.dim> rows_;
  RingPlace<1> queries_;
  RingPlace<kC.stages> tiles_;
};

}  // namespace magi::sm90
