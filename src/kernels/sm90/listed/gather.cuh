// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/listed/list_reader.cuh"
#include "kernels/sm90/listed/shared.cuh"
#include "kernels/tile/descriptor.cuh"

namespace magi::sm90 {

inline constexpr int kElementsPerCopy = 8;
inline constexpr std::uint32_t kNoPlace = 0xffffffffu;

/// One of four warps that copy rows of up to kDim elements into swizzled tiles, 16 bytes per lane.
/// A missing row becomes zeros without a read.
template <int kDim>
class RowGatherer {
 public:
  __device__ __forceinline__ RowGatherer()
      : warp_(static_cast<int>(threadIdx.x) / 32), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ int warp() const { return warp_; }
  __device__ __forceinline__ int lane() const { return lane_; }

  /// Copies this warp's rows of a tile of kRows; lane l has the index of the l-th row, or kNoKey.
  /// NOTE: a loading warp is bound by instruction issue, so it has few instructions that do not
  /// depend on each other: all rows are exchanged first, their places are 32-bit numbers in units
  /// of a copy, and swizzled destinations differ by constants.
  template <int kRows>
  __device__ __forceinline__ void copy_rows(const std::uint8_t* tile, const StridedRows& source,
                                            std::int32_t row_of_lane, int dim) const {
    const auto row_units = static_cast<std::uint32_t>(source.row_stride / kElementsPerCopy);
    copy_places<kRows>(
        tile, source,
        row_of_lane == kNoKey ? kNoPlace : static_cast<std::uint32_t>(row_of_lane) * row_units,
        dim);
  }
  /// Does the same if lane l has the place of the l-th row.
  template <int kRows>
  __device__ __forceinline__ void copy_places(const std::uint8_t* tile, const StridedRows& source,
                                              std::uint32_t place_of_lane, int dim) const {
    constexpr int kLanesPerRow = kDim / 8;
    constexpr int kRowsPerCopy = 32 / kLanesPerRow;
    constexpr int kRowsPerWarp = kRows / kLoadingWarps;
    constexpr int kCopies = kRowsPerWarp / kRowsPerCopy;
    const int chunk = lane_ % kLanesPerRow;
    const int first_row = lane_ / kLanesPerRow;
    std::uint32_t places[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      places[i] = __shfl_sync(0xffffffffu, place_of_lane, i * kRowsPerCopy + first_row);
    }
    const auto* chunks = static_cast<const uint4*>(source.data) + chunk;
    const bool is_inside = kElementsPerCopy * chunk < dim;
    const std::uint32_t first =
        ptx::shared_address(tile) +
        static_cast<std::uint32_t>(chunk / 8 * kRows * tile::kPanelRowBytes) +
        tile::swizzled_offset(warp_ * kRowsPerWarp + first_row, chunk % 8);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = i * kRowsPerCopy;  // after first_row, in other bits
      const bool is_read = is_inside && places[i] != kNoPlace;
      const auto turn = static_cast<std::uint32_t>(row % 8 << 4);
      ptx::copy_async((first ^ turn) + static_cast<std::uint32_t>(row * tile::kPanelRowBytes),
                      chunks + (is_read ? places[i] : 0), is_read ? 16 : 0);
    }
  }

  /// Copies the query heads of an item from `source`, Q or a tensor of its shape.
  template <ListedConfig kC>
  __device__ __forceinline__ void copy_heads(const std::uint8_t* tile, const StridedRows& source,
                                             const ListedItem& item, const ListedShape& shape,
                                             int dim) const {
    constexpr int kRowsPerWarp = kC.rows() / kLoadingWarps;
    const std::int32_t first = item.group * kC.rows();
    StridedRows heads = source;
    heads.data = static_cast<std::uint16_t*>(heads.data) + item.row * heads.row_stride +
                 (std::int64_t{item.kv_head} * shape.heads_per_kv + first) * heads.head_stride;
    const std::int32_t row = warp_ * kRowsPerWarp + lane_;
    if constexpr (kC.is_joined) {
      const std::int32_t query = row / shape.heads_per_kv;
      const std::int32_t head = row - query * shape.heads_per_kv;
      const bool is_head =
          lane_ < kRowsPerWarp && query < shape.queries && item.row + query < shape.rows_q;
      const auto place = static_cast<std::uint32_t>(
          (query * heads.row_stride + head * heads.head_stride) / kElementsPerCopy);
      copy_places<kC.rows()>(tile, heads, is_head ? place : kNoPlace, dim);
    } else {
      heads.row_stride = heads.head_stride;
      const bool is_head = lane_ < kRowsPerWarp && first + row < shape.heads_per_kv;
      copy_rows<kC.rows()>(tile, heads, is_head ? row : kNoKey, dim);
    }
  }

  /// Arrives for this warp's copies, once they complete, and for its own stores.
  __device__ __forceinline__ void hand_over(ptx::Mbarrier& barrier) const {
    ptx::copy_async_arrive(barrier);
    arrive_warp(barrier);
  }

 private:
  const int warp_;
  const int lane_;
};

/// Returns the rows of one head.
__device__ __forceinline__ StridedRows rows_of_head(StridedRows rows, std::int32_t head) {
  rows.data = static_cast<std::uint16_t*>(rows.data) + head * rows.head_stride;
  return rows;
}

}  // namespace magi::sm90
