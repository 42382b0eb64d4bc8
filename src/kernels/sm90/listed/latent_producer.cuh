// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "kernels/sm90/listed/gather.cuh"
#include "kernels/sm90/listed/latent_shared.cuh"

namespace magi::sm90 {

/// One of four warps that load an item's Q (in a backward also dO) and tiles of keys.
template <typename Storage, typename Params, bool kHasParts>
class LatentProducer {
 public:
  __device__ __forceinline__ LatentProducer(Storage& shared, const Params& params)
      : shared_(shared), params_(params), reader_(params.lists) {}

  __device__ __forceinline__ void run() {
    for (auto i = static_cast<std::int32_t>(blockIdx.x); i < params_.shape.num_items;
         i += static_cast<std::int32_t>(gridDim.x)) {
      load_item(ListedItem(params_.shape, i));
    }
    if constexpr (!kIsBackward) reader_.add_to_report();
  }

 private:
  static constexpr bool kIsBackward = std::is_same_v<Params, ListedBackwardParams>;

  /// Waits until the peer begins its item too.
  __device__ __forceinline__ void await_peer() {
    ptx::Mbarrier& barrier = shared_.peers.at(items_);
    if (lane_ == 0) {
      ptx::mbarrier_arrive_peer(ptx::peer_address(&barrier, ptx::cluster_rank() ^ 1));
    }
    ptx::mbarrier_wait_peer(barrier, items_.parity());
    items_.advance();
  }

  __device__ __forceinline__ void load_item(const ListedItem& item) {
    reader_.open(item.row, item.kv_head, params_.shape.heads_kv, item.group == 0);
    const bool is_loading = lane_ < kLatentKeysPerWarp;
    std::int32_t position = warp_ * kLatentKeysPerWarp + lane_;
    std::int32_t entry = reader_.entry_at(position);
    const bool is_noting = !kIsBackward && warp_ == 0;
    const int num_tiles = count_tiles<kLatentRows>(reader_, lane_, is_noting);
    if (num_tiles == 0) return load_queries(item, 0);
    if constexpr (kIsBackward) {
      if (warp_ == 0 && has_peer(params_.shape)) await_peer();
    }
    const StridedRows k = rows_of_head(params_.k, item.kv_head);
    // Gradients of keys go to the rows of keys, or to parts.
    const std::int32_t first_part =
        (item.row * params_.shape.head_groups + item.group) * params_.lists.num_positions;
    for (int i = 0; i < num_tiles; ++i) {
      const std::int32_t key = is_loading ? reader_.key_of(entry, position) : kNoKey;
      if (!kIsBackward && is_loading) reader_.note(entry, position);
      const bool has_part = kHasParts && key != kNoKey;
      const std::int32_t target = has_part ? first_part + position : key;
      position += kLatentRows;
      entry = reader_.entry_at(position);
      load_tile(k, key, target);
      // The first keys are loaded before Q, whose buffer waits for the previous item to end.
      if (i == 0) load_queries(item, num_tiles);
    }
  }

  /// Copies this warp's 16 rows into kPanels panels from `first` on, one row or more at a time.
  /// Lane l has the index of the l-th row, or kNoKey: such rows become zeros.
  template <int kPanels>
  __device__ __forceinline__ void copy_rows(std::uint8_t* panels, StridedRows source,
                                            std::int32_t row_of_lane, int first) const {
    constexpr int kLanesPerRow = kPanels * tile::kPanelElements / kElementsPerCopy;
    constexpr int kRowsPerCopy = 32 / kLanesPerRow;
    const int chunk = lane_ % kLanesPerRow;
    const int row_of_copy = lane_ / kLanesPerRow;
    const auto* chunks = static_cast<const uint4*>(source.data) + 8 * first + chunk;
    const auto row_units = static_cast<std::uint32_t>(source.row_stride / kElementsPerCopy);
    const std::uint32_t place_of_lane =
        row_of_lane == kNoKey ? kNoPlace : static_cast<std::uint32_t>(row_of_lane) * row_units;
    const std::uint32_t target =
        ptx::shared_address(panels) +
        static_cast<std::uint32_t>((first + chunk / 8) * kLatentPanelBytes) +
        tile::swizzled_offset(warp_ * kLatentKeysPerWarp + row_of_copy, chunk % 8);
#pragma unroll 4
    for (int row = 0; row < kLatentKeysPerWarp; row += kRowsPerCopy) {
      const std::uint32_t place = __shfl_sync(0xffffffffu, place_of_lane, row + row_of_copy);
      const bool is_read = place != kNoPlace;
      const auto turn = static_cast<std::uint32_t>(row % 8 << 4);
      ptx::copy_async((target ^ turn) + static_cast<std::uint32_t>(row * tile::kPanelRowBytes),
                      chunks + (is_read ? place : 0), is_read ? 16 : 0);
    }
  }

  __device__ __forceinline__ void load_queries(const ListedItem& item, int num_tiles) {
    shared_.q_ring.wait_empty(queries_);
    if (threadIdx.x == 0) shared_.num_tiles = num_tiles;
    const std::int32_t first = item.group * kLatentRows;
    const std::int32_t head = warp_ * kLatentKeysPerWarp + lane_;
    const bool is_head = lane_ < kLatentKeysPerWarp && first + head < params_.shape.heads_per_kv;
    const std::int32_t row = is_head ? head : kNoKey;
    const std::int32_t first_head = item.kv_head * params_.shape.heads_per_kv + first;
    const StridedRows q = heads_of(params_.q, item.row, first_head);
    copy_rows<kHalfPanels>(shared_.q, q, row, 0);
    copy_rows<kHalfPanels>(shared_.q, q, row, kHalfPanels);
    copy_rows<1>(shared_.q, q, row, kValuePanels);
    if constexpr (kIsBackward) {
      const StridedRows dout = heads_of(params_.dout, item.row, first_head);
      copy_rows<kHalfPanels>(shared_.dout, dout, row, 0);
      copy_rows<kHalfPanels>(shared_.dout, dout, row, kHalfPanels);
    }
    hand_over(shared_.q_ring.full.at(queries_));
    queries_.advance();
  }
  /// Returns the heads of a query from `head` on, as rows.
  __device__ __forceinline__ static StridedRows heads_of(StridedRows rows, std::int32_t row,
                                                         std::int32_t head) {
    rows.data = row_at<std::uint16_t>(rows, row, head);
    rows.row_stride = rows.head_stride;
    return rows;
  }

  __device__ __forceinline__ void load_tile(const StridedRows& k, std::int32_t key,
                                            std::int32_t target) {
    const std::uint32_t stage = tiles_.stage();
    LatentRing<Storage::kStages>& ring = shared_.tiles.ring;
    ring.wait_empty(tiles_);
    const std::uint32_t is_key = __ballot_sync(0xffffffffu, key != kNoKey);
    if (lane_ == 0) shared_.tiles.is_key[stage][warp_] = is_key;
    if constexpr (kIsBackward) {
      if (lane_ < kLatentKeysPerWarp) {
        shared_.keys[stage][warp_ * kLatentKeysPerWarp + lane_] = target;
      }
    }
    std::uint8_t* rows = shared_.tiles.rows[stage];
    copy_rows<kHalfPanels>(rows, k, key, 0);
    hand_over(ring.full[0].at(tiles_));
    copy_rows<kHalfPanels>(rows, k, key, kHalfPanels);
    copy_rows<1>(rows, k, key, kValuePanels);
    hand_over(ring.full[1].at(tiles_));
    tiles_.advance();
  }

  /// Arrives for this warp's copies, once they complete, and for its own stores.
  __device__ __forceinline__ void hand_over(ptx::Mbarrier& barrier) const {
    ptx::copy_async_arrive(barrier);
    arrive_warp(barrier);
  }

  Storage& shared_;
  const Params& params_;
  ListReader reader_;
  const int warp_ = static_cast<int>(threadIdx.x) / 32;
  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  RingPlace<1> queries_;
  RingPlace<2> items_;
  RingPlace<Storage::kStages> tiles_;
};

}  // namespace magi::sm90
