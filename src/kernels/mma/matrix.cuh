// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "kernels/sm90/global_memory.cuh"
#include "kernels/tile/descriptor.cuh"

// Tiles in shared memory and products of them by warps. A tile lies in panels of 64 columns, each
// 128-byte rows whose 16-byte chunks are exchanged by row (tile::swizzled_offset), so that the
// eight rows of a matrix that ldmatrix reads lie in different banks.
namespace magi::mma {

inline constexpr int kStep = 16;  ///< of the summed index in one instruction

/// The way in which the lanes of a warp give the rows of four 8x8 matrices, and what these are.
enum class Lanes {
  RowsFirst,     ///< by rows, then by columns: A as it lies, B transposed
  ColumnsFirst,  ///< by columns, then by rows: B as it lies, A transposed
};

/// A lane's view of a tile of kRows rows from a row and a 16-byte chunk on.
template <int kRows, Lanes kLanes>
class TileView {
 public:
  /// `row` is a multiple of 8, `chunk` even.
  __device__ __forceinline__ TileView(const void* tile, int row, int chunk) {
    const int lane = ptx::thread_index() % 32;
    const int lane_row = kLanes == Lanes::RowsFirst ? lane % 16 : lane % 8 + lane / 16 * 8;
    const int lane_chunk = kLanes == Lanes::RowsFirst ? lane / 16 : lane / 8 % 2;
    base_ = ptx::shared_address(tile) +
            static_cast<std::uint32_t>(chunk / 8 * (kRows * tile::kPanelRowBytes)) +
            tile::swizzled_offset(row + lane_row, chunk % 8 + lane_chunk);
  }

  /// Loads the 16 x 16 elements `row` rows and `chunk` chunks further. `row` is a multiple of 8;
  /// `chunk` is even and has no bit in common with the chunk where the view begins.
  __device__ __forceinline__ void load(std::uint32_t (&d)[4], int row, int chunk) const {
    ptx::load_matrix_x4(d, address(row, chunk));
  }
  __device__ __forceinline__ void load_transposed(std::uint32_t (&d)[4], int row, int chunk) const {
    ptx::load_transposed_x4(d, address(row, chunk));
  }

 private:
  __device__ __forceinline__ std::uint32_t address(int row, int chunk) const {
    // The exchange is an exclusive or, as is then the addition of a chunk.
    return (base_ ^ static_cast<std::uint32_t>(chunk % 8 << 4)) +
           static_cast<std::uint32_t>(row * tile::kPanelRowBytes +
                                      chunk / 8 * (kRows * tile::kPanelRowBytes));
  }

  std::uint32_t base_;
};

/// The A operand of a product that lies [rows, summed].
template <int kRows>
struct RowsA {
  TileView<kRows, Lanes::RowsFirst> view;
  __device__ __forceinline__ void load(std::uint32_t (&a)[4], int row, int step) const {
    view.load(a, row, 2 * step);
  }
};

/// The A operand that lies [summed, rows].
template <int kRows>
struct ColumnsA {
  TileView<kRows, Lanes::ColumnsFirst> view;
  __device__ __forceinline__ void load(std::uint32_t (&a)[4], int row, int step) const {
    view.load_transposed(a, kStep * step, row / 8);
  }
};

/// The B operand that lies [columns, summed].
template <int kRows>
struct RowsB {
  TileView<kRows, Lanes::ColumnsFirst> view;
  __device__ __forceinline__ void load(std::uint32_t (&b)[4], int column, int step) const {
    view.load(b, column, 2 * step);
  }
};

/// The B operand that lies [summed, columns].
template <int kRows>
struct ColumnsB {
  TileView<kRows, Lanes::RowsFirst> view;
  __device__ __forceinline__ void load(std::uint32_t (&b)[4], int column, int step) const {
    view.load_transposed(b, kStep * step, column / 8);
  }
};

/// d[kBlocks][...] += A B over kSteps steps: blocks of 16 rows kRowStride apart, and of kColumns
/// columns 16 at a time, kColumnStride apart.
template <DType kType, int kSteps, int kRowStride, int kColumnStride, int kBlocks, int kFloats,
          typename A, typename B>
__device__ __forceinline__ void add_product(float (&d)[kBlocks][kFloats], const A& a, const B& b) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    std::uint32_t rows[kBlocks][4];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) a.load(rows[i], kRowStride * i, step);
#pragma unroll
    for (int j = 0; j < kFloats / 8; ++j) {
      std::uint32_t columns[4];
      b.load(columns, kColumnStride * j, step);
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        ptx::multiply_add<kType>(d[i] + 8 * j, rows[i], columns[0], columns[1]);
        ptx::multiply_add<kType>(d[i] + 8 * j + 4, rows[i], columns[2], columns[3]);
      }
    }
  }
}

/// Likewise with A in registers, as tile::pack_fragments makes it of scores: kWords / 4 steps.
template <DType kType, int kBlocks, int kFloats, int kWords, typename B>
__device__ __forceinline__ void add_packed_product(float (&d)[kBlocks][kFloats],
                                                   const std::uint32_t (&a)[kBlocks][kWords],
                                                   const B& b) {
#pragma unroll
  for (int step = 0; step < kWords / 4; ++step) {
#pragma unroll
    for (int j = 0; j < kFloats / 8; ++j) {
      std::uint32_t columns[4];
      b.load(columns, kStep * j, step);
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        ptx::multiply_add<kType>(d[i] + 8 * j, a[i] + 4 * step, columns[0], columns[1]);
        ptx::multiply_add<kType>(d[i] + 8 * j + 4, a[i] + 4 * step, columns[2], columns[3]);
      }
    }
  }
}

/// The rows of a tile that a thread copies: the first and every kPassRows-th after it. A tile is
/// copied by all threads of a CTA, eight to a row.
template <int kThreads>
struct CopiedRows {
  static constexpr int kChunks = tile::kPanelRowBytes / 16;
  static constexpr int kPassRows = kThreads / kChunks;

  /// The thread's first row in the tile.
  __device__ __forceinline__ static int first() { return ptx::thread_index() / kChunks; }

  const std::uint16_t* source;  ///< the place of that row in device memory
  std::int64_t step;            ///< elements to the next one
};

/// Copies a tile of kRows rows and kDim columns to shared memory. Rows for which is_there(row) is
/// false are written as zeros, like columns from `num_columns`, a multiple of 8, on. NOTE: copies
/// are written after anything read before them: what is_there needs lies in registers.
template <int kRows, int kDim, int kThreads, typename IsThere>
__device__ __forceinline__ void copy_tile(void* tile, int num_columns,
                                          const CopiedRows<kThreads>& rows,
                                          const IsThere& is_there) {
  constexpr int kPassRows = CopiedRows<kThreads>::kPassRows;
  static_assert(kPassRows % 8 == 0 && kRows % kPassRows == 0 && kDim % tile::kPanelElements == 0);
  const int chunk = ptx::thread_index() % CopiedRows<kThreads>::kChunks;
  const int first = CopiedRows<kThreads>::first();
  const std::uint32_t base = ptx::shared_address(tile) + tile::swizzled_offset(first, chunk);
  const std::uint16_t* source = rows.source + 8 * chunk;
#pragma unroll
  for (int row = 0; row < kRows; row += kPassRows) {
    const bool has_row = is_there(first + row);
#pragma unroll
    for (int panel = 0; panel < kDim / tile::kPanelElements; ++panel) {
      const int column = panel * tile::kPanelElements;
      ptx::copy_or_clear(base + (panel * kRows + row) * tile::kPanelRowBytes, source + column,
                         has_row && column + 8 * chunk < num_columns);
    }
    source += rows.step;
  }
}

/// Rows of a q tile: the packed heads from `head` on of each token from `token` on. A pass holds
/// whole tokens.
template <int kThreads>
__device__ __forceinline__ CopiedRows<kThreads> packed_rows(const sm90::StridedRows& rows,
                                                            std::int64_t token, int head,
                                                            int packed_shift) {
  using Rows = CopiedRows<kThreads>;
  const int row = Rows::first();
  const int in_token = row & ((1 << packed_shift) - 1);
  return {sm90::row_at<std::uint16_t>(rows, token + (row >> packed_shift), head + in_token),
          (Rows::kPassRows >> packed_shift) * rows.row_stride};
}

}  // namespace magi::mma
