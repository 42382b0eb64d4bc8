// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/mask.hpp"

// The inner loops of attention on the CPU, as function pointers so that one instruction set can be
// picked at run time. A strip is up to kStripRows rows of scores against one block of columns;
// forward and dq put queries on rows and keys on columns, dk and dv the reverse.
namespace magi::cpu {

inline constexpr std::int32_t kStripRows = 6;
inline constexpr std::int32_t kBlockCols = 128;

/// scores[r, c] = rows[r, :] . column c, for columns in [col_begin, col_end), multiples of
/// panel_cols.
template <typename Real>
struct ScoreArgs {
  const Real* rows;    ///< [num_rows, dim]
  const Real* panels;  ///< [kBlockCols / panel_cols, dim, panel_cols]
  Real* scores;        ///< [num_rows, kBlockCols]
  std::int64_t dim;
  std::int32_t num_rows;
  std::int32_t col_begin;
  std::int32_t col_end;
};

/// sums[r, :] += sum over columns c in [col_begin, col_end) of weights[r, c] * values[c, :].
template <typename Real>
struct AccumulateArgs {
  const Real* weights;  ///< [num_rows, kBlockCols]
  const Real* values;   ///< [kBlockCols, dim]
  Real* sums;           ///< [num_rows, dim]
  std::int64_t dim;     ///< a multiple of panel_cols
  std::int32_t num_rows;
  std::int32_t col_begin;
  std::int32_t col_end;
};

/// One step of online softmax in base 2 (Milakov and Gimelshein 2018): scores become weights
/// 2^(score - row_max), row_max and row_sum move on, and rescale says by how much earlier sums
/// shrink.
template <typename Real>
struct SoftmaxArgs {
  Real* scores;          ///< [num_rows, kBlockCols]
  const Range* visible;  ///< [num_rows] columns that the row sees
  Real* row_max;         ///< [num_rows]
  Real* row_sum;         ///< [num_rows]
  Real* raw_max;         ///< [num_rows] max of the scores as they came
  Real* rescale;         ///< [kStripRows] out
  Real softcap;          ///< 0: off; else score = softcap * tanh(score as it came)
  std::int32_t num_rows;
  std::int32_t col_begin;
  std::int32_t col_end;
};

/// scores become p = 2^(score - lse), dscores (holding dO . V) become p * (dscores - delta), times
/// 1 - tanh^2 with softcap; both 0 where not visible.
template <typename Real>
struct GradientArgs {
  Real* scores;   ///< [num_rows, kBlockCols]
  Real* dscores;  ///< [num_rows, kBlockCols]
  const Range* visible;
  const Real* lse;       ///< per row, or per column where queries are on columns
  const Real* lse_rest;  ///< like lse, which it is added to
  const Real* delta;     ///< like lse
  Real softcap;
  std::int32_t num_rows;
  std::int32_t col_begin;
  std::int32_t col_end;
};

template <typename Real>
struct MicroKernels {
  std::int32_t panel_cols;
  /// Rows [col_begin, col_end) of [kBlockCols, ld] into panels (ScoreArgs::panels).
  void (*pack_panels)(const Real* rows, std::int64_t ld, std::int64_t dim, Range cols,
                      Real* panels);
  void (*scores)(const ScoreArgs<Real>& args);
  void (*accumulate)(const AccumulateArgs<Real>& args);
  void (*softmax)(const SoftmaxArgs<Real>& args);
  void (*gradient_by_row)(const GradientArgs<Real>& args);
  void (*gradient_by_column)(const GradientArgs<Real>& args);
  bool (*all_finite)(const Real* values, std::int64_t count);
  /// values[i] = 2^values[i], tanh(values[i])
  void (*exp2)(Real* values, std::int64_t count);
  void (*tanh)(Real* values, std::int64_t count);
};

enum class Isa : std::int32_t { Best, Portable, Avx2 };

/// Whether this build and this machine can run it.
bool isa_available(Isa isa);

/// The table for an instruction set; Best is the widest this machine runs. Throws InvalidArgument
/// where it is not available. Real: float or double.
template <typename Real>
const MicroKernels<Real>& micro_kernels(Isa isa);

}  // namespace magi::cpu
