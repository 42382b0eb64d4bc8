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

/// Returns ptx::thread_index, known to be no less than 0, so that its quotients are shifts.
__device__ __forceinline__ int thread_index() {
  const int index = ptx::thread_index();
  __builtin_assume(index >= 0);
  return index;
}

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
    const int lane = thread_index() % 32;
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

/// d[i] += A_i B for blocks i of 16 rows, 16 columns of B.
template <DType kType, int kBlocks, int kFloats>
__device__ __forceinline__ void multiply_columns(float (&d)[kBlocks][kFloats], int first,
                                                 const std::uint32_t (&rows)[kBlocks][4],
                                                 const std::uint32_t (&columns)[4]) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    ptx::multiply_add<kType>(d[i] + first, rows[i], columns[0], columns[1]);
    ptx::multiply_add<kType>(d[i] + first + 4, rows[i], columns[2], columns[3]);
  }
}

/// d[kBlocks][...] += A B over kSteps steps: blocks of 16 rows kRowStride apart, and of columns 16
/// at a time, kColumnStride apart. What is multiplied next is loaded before: a warp has few others
/// beside it that would fill its waits.
template <DType kType, int kSteps, int kRowStride, int kColumnStride, int kBlocks, int kFloats,
          typename A, typename B>
__device__ __forceinline__ void add_product(float (&d)[kBlocks][kFloats], const A& a, const B& b) {
  constexpr int kParts = kFloats / 8;
  std::uint32_t rows[2][kBlocks][4];
  std::uint32_t columns[2][4];
  const auto load_rows = [&](int step) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) a.load(rows[step % 2][i], kRowStride * i, step);
  };
  load_rows(0);
  b.load(columns[0], 0, 0);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const int part = step * kParts + j;
      const int next = part + 1;
      if (next < kSteps * kParts) {
        b.load(columns[next % 2], kColumnStride * (next % kParts), next / kParts);
      }
      if (j == 0 && step + 1 < kSteps) load_rows(step + 1);
      multiply_columns<kType>(d, 8 * j, rows[step % 2], columns[part % 2]);
    }
  }
}

/// A that lies in registers, blocks of 16 rows, as tile::pack_fragments makes them of scores.
template <int kBlocks, int kWords>
struct PackedA {
  const std::uint32_t (&words)[kBlocks][kWords];
  __device__ __forceinline__ void load(std::uint32_t (&a)[4], int row, int step) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = words[row / 16][4 * step + i];
  }
};

/// The rows of a tile that a thread copies: the first and every kPassRows-th after it. A tile is
/// copied by all threads of a CTA, eight to a row.
template <int kThreads>
struct CopiedRows {
  static constexpr int kChunks = tile::kPanelRowBytes / 16;
  static constexpr int kPassRows = kThreads / kChunks;

  /// The thread's first row in the tile.
  __device__ __forceinline__ static int first() { return thread_index() / kChunks; }

  const std::uint16_t* source;  ///< the place of that row in device memory
  std::int64_t step;            ///< elements to the next one
};

/// Copies a tile of kRows rows and kDim columns to shared memory. Rows for which is_there(row) is
/// false are written as zeros, like columns from `num_columns`, a multiple of 8, on. NOTE: copies
/// are written after anything read before them: what is_there needs lies in registers. kUnrolled:
/// the passes that are unrolled; all, unless registers are few.
template <int kRows, int kDim, int kUnrolled = kRows, int kThreads, typename IsThere>
__device__ __forceinline__ void copy_tile(void* tile, int num_columns,
                                          const CopiedRows<kThreads>& rows,
                                          const IsThere& is_there) {
  constexpr int kPassRows = CopiedRows<kThreads>::kPassRows;
  static_assert(kPassRows % 8 == 0 && kRows % kPassRows == 0 && kDim % tile::kPanelElements == 0);
  const int chunk = thread_index() % CopiedRows<kThreads>::kChunks;
  const int first = CopiedRows<kThreads>::first();
  const std::uint32_t base = ptx::shared_address(tile) + tile::swizzled_offset(first, chunk);
  const std::uint16_t* source = rows.source;
#pragma unroll kUnrolled
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
  const int column = 8 * (thread_index() % Rows::kChunks);
  return {
      sm90::row_at<std::uint16_t>(rows, token + (row >> packed_shift), head + in_token) + column,
      (Rows::kPassRows >> packed_shift) * rows.row_stride};
}

}  // namespace magi::mma
