// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/math.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/cpu/run_items.hpp"

namespace magi::cpu {

/// One head of a block of rows of a tensor, as rows and, where asked, as panels with rows on
/// columns.
template <typename Real>
struct PackedBlock {
  Buffer<Real> rows;    ///< [kBlockCols, padded_dim]
  Buffer<Real> panels;  ///< ScoreArgs::panels
  std::int64_t dim = 0;
  std::int64_t padded_dim = 0;
  bool is_finite = true;

  PackedBlock(std::int64_t row_dim, std::int32_t panel_cols)
      : rows(make_buffer<Real>(kBlockCols * align_up<std::int64_t>(row_dim, panel_cols))),
        panels(make_buffer<Real>(kBlockCols * row_dim)),
        dim(row_dim),
        padded_dim(align_up<std::int64_t>(row_dim, panel_cols)) {}
};

/// The rows to pack: `used` of one head; row block_begin goes to column 0.
struct PackSource {
  const TensorView& tensor;
  std::int64_t head = 0;
  std::int32_t block_begin = 0;
  Range used;
};

/// Fills columns [0, num_cols) of block.rows by load(column, row), and the rest of their last panel
/// with zeros. Returns the whole panels.
template <typename Real, typename Load>
Range pack_columns(const MicroKernels<Real>& kernels, std::int32_t num_cols,
                   PackedBlock<Real>& block, const Load& load) {
  const Range cols{0, align_up(num_cols, kernels.panel_cols)};
  for (std::int32_t c = 0; c < num_cols; ++c) load(c, block.rows.data() + c * block.padded_dim);
  std::fill(block.rows.data() + num_cols * block.padded_dim,
            block.rows.data() + cols.end * block.padded_dim, Real{0});
  block.is_finite = kernels.all_finite(block.rows.data(), num_cols * block.padded_dim);
  return cols;
}

/// Rows keys[c] of one head of a tensor as columns c. Returns the whole panels.
template <typename Real>
Range pack_listed_rows(const MicroKernels<Real>& kernels, const TensorView& tensor,
                       std::int64_t head, std::span<const std::int32_t> keys,
                       PackedBlock<Real>& block) {
  return pack_columns(kernels, static_cast<std::int32_t>(keys.size()), block,
                      [&](std::int32_t c, Real* row) {
                        const std::int32_t key = keys[static_cast<std::size_t>(c)];
                        load_row(tensor, key, head, block.padded_dim, row);
                      });
}

/// Fills block.rows for whole panels around source.used; rows outside it are zero.
template <typename Real>
Range pack_rows(const MicroKernels<Real>& kernels, const PackSource& source,
                PackedBlock<Real>& block) {
  const std::int32_t panel_cols = kernels.panel_cols;
  const Range used{source.used.begin - source.block_begin, source.used.end - source.block_begin};
  const Range cols{used.begin / panel_cols * panel_cols, align_up(used.end, panel_cols)};
  for (std::int32_t c = cols.begin; c < cols.end; ++c) {
    Real* row = block.rows.data() + c * block.padded_dim;
    if (c < used.begin || c >= used.end) {
      std::fill(row, row + block.padded_dim, Real{0});
    } else {
      load_row(source.tensor, source.block_begin + c, source.head, block.padded_dim, row);
    }
  }
  block.is_finite = kernels.all_finite(block.rows.data() + cols.begin * block.padded_dim,
                                       (cols.end - cols.begin) * block.padded_dim);
  return cols;
}

/// block.panels from block.rows. The panels, and not the rows, are multiplied with `panel_factor`.
template <typename Real>
void make_panels(const MicroKernels<Real>& kernels, Range cols, PackedBlock<Real>& block,
                 Real panel_factor = 1) {
  kernels.pack_panels(block.rows.data(), block.padded_dim, block.dim, cols, block.panels.data());
  if (panel_factor == 1) return;
  for (std::int64_t i = cols.begin * block.dim; i < cols.end * block.dim; ++i) {
    block.panels[static_cast<std::size_t>(i)] *= panel_factor;
  }
}

template <typename Real>
void pack_rows_and_panels(const MicroKernels<Real>& kernels, const PackSource& source,
                          PackedBlock<Real>& block, Real panel_factor = 1) {
  make_panels(kernels, pack_rows(kernels, source, block), block, panel_factor);
}

}  // namespace magi::cpu
