// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/listed/config.hpp"
#include "kernels/sm90/listed/list_reader.cuh"
#include "kernels/sm90/listed/shared.cuh"

namespace magi::sm90 {

/// Reads an item's list and publishes which positions of a tile have keys; one per loading warp.
template <ListedConfig kC>
class ItemList {
 public:
  template <typename Params>
  __device__ __forceinline__ explicit ItemList(const Params& params)
      : shape_(params.shape), reader_(params.lists) {}

  /// Returns the number of tiles. `is_noting`: whether to count bad entries for the report.
  __device__ __forceinline__ int open(const ListedItem& item, bool is_noting) {
    reader_.open(item.row, item.kv_head, shape_.heads_kv, is_noting && item.group == 0);
    return count_tiles<kC.keys>(reader_, static_cast<int>(threadIdx.x) % 32,
                                is_noting && threadIdx.x < 32);
  }
  __device__ __forceinline__ std::int32_t entry_at(std::int32_t position) const {
    return reader_.entry_at(position);
  }
  __device__ __forceinline__ std::int32_t key_of(std::int32_t entry, std::int32_t position) const {
    return reader_.key_of(entry, position);
  }
  __device__ __forceinline__ void note(std::int32_t entry, std::int32_t position) {
    reader_.note(entry, position);
  }
  __device__ __forceinline__ void add_to_report() const { reader_.add_to_report(); }

  /// Stores the words of TileMask of a tile, of which the lane has a key or kNoKey.
  __device__ __forceinline__ void put_mask(std::uint32_t* words, int, std::int32_t key) const {
    const std::uint32_t is_key = __ballot_sync(0xffffffffu, key != kNoKey);
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = is_key;
  }

 private:
  const ListedShape& shape_;
  ListReader reader_;
};

/// Does the same for a joined list.
template <ListedConfig kC>
requires(kC.is_joined) class ItemList<kC> {
 public:
  template <typename Params>
  __device__ __forceinline__ explicit ItemList(const Params& params)
      : shape_(params.shape), lists_(params.joined) {}

  __device__ __forceinline__ int open(const ListedItem& item, bool) {
    const std::int64_t list =
        std::int64_t{item.row / shape_.queries} * shape_.heads_kv + item.kv_head;
    keys_ = lists_.keys + list * lists_.max_keys;
    seen_ = lists_.seen + list * lists_.seen_words();
    return num_tiles_ = __ldg(lists_.num_tiles + list);
  }
  __device__ __forceinline__ std::int32_t entry_at(std::int32_t position) const {
    return position < num_tiles_ * kC.keys ? __ldg(keys_ + position) : kNoKey;
  }
  __device__ __forceinline__ std::int32_t key_of(std::int32_t entry, std::int32_t) const {
    return entry;
  }
  __device__ __forceinline__ void note(std::int32_t, std::int32_t) const {}
  __device__ __forceinline__ void add_to_report() const {}

  __device__ __forceinline__ void put_mask(std::uint32_t* words, int tile_idx, std::int32_t) const {
    const int word = 4 * static_cast<int>(threadIdx.x);
    if (word >= kSeenWords) return;
    ptx::copy_async(ptx::shared_address(words + word), seen_ + tile_idx * kSeenWords + word, 16);
  }

 private:
  const ListedShape& shape_;
  const JoinedLists& lists_;
  const std::int32_t* keys_ = nullptr;
  const std::uint32_t* seen_ = nullptr;
  int num_tiles_ = 0;
};

}  // namespace magi::sm90
