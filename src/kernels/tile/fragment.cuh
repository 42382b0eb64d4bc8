// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/math.cuh"

// The accumulator fragment of a 64 x N tile: each thread holds two rows (8 apart) and, of each,
// columns 8c + 2 * (lane % 4) + {0, 1}.
namespace magi::tile {

inline constexpr int kRowsPerThread = 2;

/// The place where a thread's fragment lies in its warpgroup's 64 rows.
struct FragmentPlace {
  int row;     ///< the first of the two rows
  int column;  ///< the first column

  __device__ __forceinline__ explicit FragmentPlace(int thread_in_warpgroup)
      : row((thread_in_warpgroup / 32) * 16 + (thread_in_warpgroup % 32) / 4),
        column(2 * (thread_in_warpgroup % 4)) {}
};

/// The number of a row's fragment elements that lie in columns below `limit` (relative to the
/// thread's first column); may be out of range on either side.
__device__ __forceinline__ int elements_below(int limit) {
  return (limit >> 3) * 2 + min(limit & 7, 2);
}

/// The lowest n bits, any n.
__device__ __forceinline__ std::uint32_t low_bits(int n) {
  return n >= 32 ? 0xffffffffu : (1u << max(n, 0)) - 1u;
}

/// Elements [begin + bit, begin + bit + 8) of both rows, as far as there are so many: those whose
/// bit of `keep` is not set become -infinity.
template <int kCount>
__device__ __forceinline__ void mask_byte(float (&values)[kCount],
                                          const std::uint32_t (&keep)[kRowsPerThread], int begin,
                                          int bit) {
#pragma unroll
  for (int i = bit; i < bit + 8 && begin + i < kCount / kRowsPerThread; ++i) {
#pragma unroll
    for (int row = 0; row < kRowsPerThread; ++row) {
      const int element = begin + i;
      float& value = values[(element / 2) * 4 + row * 2 + element % 2];
      value = (keep[row] & (1u << i)) != 0 ? value : -INFINITY;
    }
  }
}

/// Sets the elements of the thread's rows outside columns [low[row], high[row]) to -infinity. The
/// columns are relative to the thread's first column. Columns that all rows of the warp see cost
/// nothing, 32 at a time: a diagonal crosses few. Selecting (not adding) also drops NaN.
template <int kColumns, int kCount>
__device__ __forceinline__ void mask_rows(float (&values)[kCount], const int (&low)[kRowsPerThread],
                                          const int (&high)[kRowsPerThread]) {
  constexpr int kElements = kColumns / 4;
  static_assert(kElements == kCount / kRowsPerThread);
#pragma unroll
  for (int begin = 0; begin < kElements; begin += 32) {
    std::uint32_t keep[kRowsPerThread];
#pragma unroll
    for (int row = 0; row < kRowsPerThread; ++row) {
      keep[row] =
          low_bits(elements_below(high[row]) - begin) & ~low_bits(elements_below(low[row]) - begin);
    }
    const std::uint32_t seen = __reduce_and_sync(0xffffffffu, keep[0] & keep[1]);
#pragma unroll
    for (int bit = 0; bit < 32 && begin + bit < kElements; bit += 8) {
      const std::uint32_t all = low_bits(min(kElements - begin - bit, 8));
      if ((seen >> bit & all) != all) mask_byte(values, keep, begin, bit);
    }
  }
}

/// The A fragments of the 64 x kColumns tile: accumulators rounded to 16 bits, pair by pair.
template <DType kType, int kColumns, int kCount, int kPacked>
__device__ __forceinline__ void pack_fragments(const float (&values)[kCount],
                                               std::uint32_t (&packed)[kPacked]) {
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    packed[i] = ptx::pack_half2<kType>(values[2 * i], values[2 * i + 1]);
  }
}

/// Reduces over the four lanes that share a row.
__device__ __forceinline__ float max_over_row(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ __forceinline__ float sum_over_row(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

}  // namespace magi::tile
