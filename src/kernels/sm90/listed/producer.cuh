// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/listed/gather.cuh"
#include "kernels/sm90/listed/item_list.cuh"

namespace magi::sm90 {

/// One of four warps that load an item's Q and, for each tile, K and then V of the tile before it.
template <ListedConfig kC>
class ListedProducer {
 public:
  __device__ __forceinline__ ListedProducer(ListedStorage<kC>& shared,
                                            const ListedForwardParams& params)
      : shared_(shared), params_(params), list_(params) {}

  __device__ __forceinline__ void run() {
    for (auto i = static_cast<std::int32_t>(blockIdx.x); i < params_.shape.num_items;
         i += static_cast<std::int32_t>(gridDim.x)) {
      load_item(ListedItem(params_.shape, i));
    }
    list_.add_to_report();
  }

 private:
  __device__ __forceinline__ void load_item(const ListedItem& item) {
    const int num_tiles = list_.open(item, true);
    std::int32_t entry = list_.entry_at(position_of(0));
    if (num_tiles == 0) return load_queries(item, 0);
    const StridedRows k = rows_of_head(params_.k, item.kv_head);
    const StridedRows v = rows_of_head(params_.v, item.kv_head);
    std::int32_t value_key = kNoKey;
    for (int i = 0; i < num_tiles; ++i) {
      const std::int32_t position = position_of(i);
      const std::int32_t key = is_loading() ? list_.key_of(entry, position) : kNoKey;
      if (is_loading()) list_.note(entry, position);
      entry = list_.entry_at(position + kC.keys);
      load_keys(k, key, i);
      // The first keys are loaded before Q, whose buffer may wait for the previous item to end.
      if (i == 0) {
        load_queries(item, num_tiles);
      } else {
        load_values(v, value_key);
      }
      value_key = key;
    }
    load_values(v, value_key);
  }

  /// Whether the lane has a key of the tile.
  __device__ __forceinline__ bool is_loading() const { return rows_.lane() < kC.keys_per_warp(); }
  __device__ __forceinline__ std::int32_t position_of(int tile_idx) const {
    return tile_idx * kC.keys + rows_.warp() * kC.keys_per_warp() + rows_.lane();
  }

  __device__ __forceinline__ void load_queries(const ListedItem& item, int num_tiles) {
    shared_.q_ring.wait_empty(queries_);
    if (threadIdx.x == 0) shared_.num_tiles[queries_.stage()] = num_tiles;
    rows_.template copy_heads<kC>(shared_.q[queries_.stage()], params_.q, item, params_.shape,
                                  params_.shape.dim_qk);
    rows_.hand_over(shared_.q_ring.full.at(queries_));
    queries_.advance();
  }

  __device__ __forceinline__ void load_keys(const StridedRows& k, std::int32_t key, int tile_idx) {
    shared_.k_ring.wait_empty(keys_);
    list_.put_mask(shared_.is_key[keys_.stage()], tile_idx, key);
    rows_.template copy_rows<kC.keys>(shared_.k[keys_.stage()], k, key, params_.shape.dim_qk);
    rows_.hand_over(shared_.k_ring.full.at(keys_));
    keys_.advance();
  }

  __device__ __forceinline__ void load_values(const StridedRows& v, std::int32_t key) {
    shared_.v_ring.wait_empty(values_);
    rows_.template copy_rows<kC.keys>(shared_.v[values_.stage()], v, key, params_.shape.dim_v);
    rows_.hand_over(shared_.v_ring.full.at(values_));
    values_.advance();
  }

  ListedStorage<kC>& shared_;
  const ListedForwardParams& params_;
  ItemList<kC> list_;
  const RowGatherer<kC.dim> rows_;
  RingPlace<kC.q_stages> queries_;
  RingPlace<kC.stages> keys_;
  RingPlace<kC.stages> values_;
};

}  // namespace magi::sm90
