// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/global_memory.cuh"
#include "kernels/sm90/listed/shared.cuh"
#include "kernels/tile/fragment.cuh"

namespace magi::sm90 {

/// The places of the two rows of a thread's fragment: query heads of an item's query or, with
/// kIsJoined, of its queries. Rows of the tile without a query head of the kv head are not stored.
template <bool kIsJoined>
class TileRows {
 public:
  /// Finds the rows of a warpgroup, which begin with head `first` of the kv head.
  __device__ __forceinline__ TileRows(const ListedShape& shape, const ListedItem& item, int first)
      : shape_(shape),
        place_(ptx::thread_index() % 128),
        token_(item.row),
        first_row_(first + place_.row),
        first_head_(item.kv_head * shape.heads_per_kv) {}

  __device__ __forceinline__ int column() const { return place_.column; }
  __device__ __forceinline__ std::int32_t token() const { return token_; }  ///< the first row's
  __device__ __forceinline__ std::int32_t token_of(int row) const { return token_ + query_of(row); }
  __device__ __forceinline__ bool is_head(int row) const {
    if constexpr (!kIsJoined) return first_row_ + 8 * row < shape_.heads_per_kv;
    return query_of(row) < shape_.queries && token_of(row) < shape_.rows_q;
  }
  __device__ __forceinline__ int head_of(int row) const {
    return first_head_ + first_row_ + 8 * row - query_of(row) * shape_.heads_per_kv;
  }

  /// Stores the first `dim` columns of a fragment, rounded to kType unless the target is float32.
  template <DType kType, int kCount>
  __device__ __forceinline__ void store(const StridedRows& target, int dim,
                                        const float (&values)[kCount]) const {
    if (target.is_float()) {
      store_float(target, dim, values);
    } else {
      store_half<kType>(target, dim, values);
    }
  }

 private:
  __device__ __forceinline__ int query_of(int row) const {
    return kIsJoined ? (first_row_ + 8 * row) / shape_.heads_per_kv : 0;
  }

  template <int kCount>
  __device__ __forceinline__ void store_float(const StridedRows& target, int dim,
                                              const float (&values)[kCount]) const {
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const int num_columns = is_head(row) ? dim - place_.column : 0;
      float* elements = row_at<float>(target, token_of(row), head_of(row)) + place_.column;
#pragma unroll
      for (int c = 0; c < kCount / 4; ++c) {
        const int i = 4 * c + 2 * row;
        if (8 * c < num_columns) {
          *reinterpret_cast<float2*>(elements + 8 * c) = make_float2(values[i], values[i + 1]);
        }
      }
    }
  }

  /// Exchanges two neighbouring chunks of 8 columns between four lanes, which hold them in pairs.
  /// Even lanes take the first chunk and odd lanes the second, so that each stores 8 bytes.
  template <DType kType, int kCount>
  __device__ __forceinline__ void store_half(const StridedRows& target, int dim,
                                             const float (&values)[kCount]) const {
    const bool is_odd = place_.column % 4 != 0;
    const int first_column = place_.column + (is_odd ? 6 : 0);
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const int num_columns = is_head(row) ? dim - first_column : 0;
      auto* elements = row_at<std::uint16_t>(target, token_of(row), head_of(row)) + first_column;
#pragma unroll
      for (int c = 0; c < kCount / 4; c += 2) {
        const int i = 4 * c + 2 * row;
        const std::uint32_t first = ptx::pack_half2<kType>(values[i], values[i + 1]);
        const std::uint32_t second = ptx::pack_half2<kType>(values[i + 4], values[i + 5]);
        const std::uint32_t other = __shfl_xor_sync(0xffffffffu, is_odd ? first : second, 1);
        if (8 * c >= num_columns) continue;
        *reinterpret_cast<uint2*>(elements + 8 * c) =
            is_odd ? make_uint2(other, second) : make_uint2(first, other);
      }
    }
  }

  const ListedShape& shape_;
  const tile::FragmentPlace place_;
  const std::int32_t token_;
  const int first_row_;   ///< the first of the thread's two, among the heads of the kv head
  const int first_head_;  ///< the first head of the kv head
};
using HeadRows = TileRows<false>;

}  // namespace magi::sm90
