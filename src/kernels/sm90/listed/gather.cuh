// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/listed/list_reader.cuh"
#include "kernels/sm90/listed/shared.cuh"
#include "kernels/tile/descriptor.cuh"

namespace magi::sm90 {

/// One of four warps that copy rows of up to kDim elements into swizzled tiles, 16 bytes a lane.
/// Rows that are none become zeros and are never read.
template <int kDim>
class RowGatherer {
 public:
  __device__ __forceinline__ RowGatherer()
      : warp_(static_cast<int>(threadIdx.x) / 32), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ int warp() const { return warp_; }
  __device__ __forceinline__ int lane() const { return lane_; }

  /// Copies this warp's rows of a tile of kRows; lane l knows which the l-th is, or kNoKey.
  template <int kRows>
  __device__ __forceinline__ void copy_rows(const std::uint8_t* tile, const StridedRows& source,
                                            std::int32_t row_of_lane, int dim) const {
    constexpr int kLanesPerRow = kDim / 8;
    constexpr int kRowsPerCopy = 32 / kLanesPerRow;
    constexpr int kRowsPerWarp = kRows / kLoadingWarps;
    const int chunk = lane_ % kLanesPerRow;
    const auto* chunks = static_cast<const std::uint16_t*>(source.data) + 8 * chunk;
    const std::uint32_t panel =
        ptx::shared_address(tile) +
        static_cast<std::uint32_t>(chunk / 8 * kRows * tile::kPanelRowBytes);
#pragma unroll 4
    for (int i = 0; i < kRowsPerWarp; i += kRowsPerCopy) {
      const int row_in_warp = i + lane_ / kLanesPerRow;
      const std::int32_t row = __shfl_sync(0xffffffffu, row_of_lane, row_in_warp);
      const int row_in_tile = warp_ * kRowsPerWarp + row_in_warp;
      const bool is_read = row != kNoKey && 8 * chunk < dim;
      ptx::copy_async(panel + tile::swizzled_offset(row_in_tile, chunk % 8),
                      chunks + (is_read ? row * source.row_stride : 0), is_read ? 16 : 0);
    }
  }

  /// Copies the query heads of an item from `source`, Q or what is like it.
  template <int kRows>
  __device__ __forceinline__ void copy_heads(const std::uint8_t* tile, const StridedRows& source,
                                             const ListedItem& item, const ListedShape& shape,
                                             int dim) const {
    constexpr int kRowsPerWarp = kRows / kLoadingWarps;
    const std::int32_t first = item.group * kRows;
    StridedRows heads = source;
    heads.data = static_cast<std::uint16_t*>(heads.data) + item.row * heads.row_stride +
                 (std::int64_t{item.kv_head} * shape.heads_per_kv + first) * heads.head_stride;
    heads.row_stride = heads.head_stride;
    const std::int32_t head = warp_ * kRowsPerWarp + lane_;
    const bool is_head = lane_ < kRowsPerWarp && first + head < shape.heads_per_kv;
    copy_rows<kRows>(tile, heads, is_head ? head : kNoKey, dim);
  }

  /// This warp's arrivals: of its copies when they are done, and for what it stored itself.
  __device__ __forceinline__ void hand_over(ptx::Mbarrier& barrier) const {
    ptx::copy_async_arrive(barrier);
    arrive_warp(barrier);
  }

 private:
  const int warp_;
  const int lane_;
};

/// The rows of one head.
__device__ __forceinline__ StridedRows rows_of_head(StridedRows rows, std::int32_t head) {
  rows.data = static_cast<std::uint16_t*>(rows.data) + head * rows.head_stride;
  return rows;
}

}  // namespace magi::sm90
