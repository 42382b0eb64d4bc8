// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "kernels/cpu/micro_kernel_table.hpp"
#include "kernels/cpu/simd.hpp"

// The text of the micro kernels, for any vector width. The matrix products keep a tile of
// kStripRows x 2 vectors in registers: 12 accumulators, 2 column vectors, 1 broadcast.
namespace magi::cpu {

template <typename Real, int kBytes>
struct MicroKernelText {
  using S = Simd<Real, kBytes>;
  using Vec = typename S::Vec;
  static constexpr std::int64_t kLanes = S::kLanes;
  static constexpr std::int64_t kPanel = 2 * kLanes;
  static constexpr Real kMinusInfinity = -static_cast<Real>(__builtin_inf());

  static void pack_panels(const Real* rows, std::int64_t ld, std::int64_t dim, Range cols,
                          Real* panels) {
    for (std::int64_t c = cols.begin; c < cols.end; c += kLanes) {
      const Real* from = rows + c * ld;
      Real* to = panels + c / kPanel * kPanel * dim + c % kPanel;
      std::int64_t p = 0;
      for (; p + kLanes <= dim; p += kLanes) transpose_square(from + p, ld, to + p * kPanel);
      for (; p < dim; ++p) {
        for (std::int64_t lane = 0; lane < kLanes; ++lane) {
          to[p * kPanel + lane] = from[lane * ld + p];
        }
      }
    }
  }

  /// kLanes x kLanes elements from rows of `ld` to rows of kPanel, by log2(kLanes) rounds that swap
  /// ever smaller off-diagonal squares.
  static void transpose_square(const Real* from, std::int64_t ld, Real* to) {
    Vec square[kLanes];
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < kLanes; ++i) square[i] = S::load(from + i * ld);
    if constexpr (kLanes >= 8) swap_squares<4>(square);
    if constexpr (kLanes >= 4) swap_squares<2>(square);
    swap_squares<1>(square);
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < kLanes; ++i) S::store(to + i * kPanel, square[i]);
  }

  /// Exchanges the upper right and lower left kSide x kSide squares of every 2 kSide x 2 kSide one.
  template <int kSide>
  static void swap_squares(Vec* square) {
#pragma GCC unroll 8
    for (int i = 0; i < kLanes; ++i) {
      if ((i & kSide) != 0) continue;
      const Vec a = square[i], b = square[i + kSide];
      square[i] = interleave<kSide, 0>(a, b, Lanes{});
      square[i + kSide] = interleave<kSide, kSide>(a, b, Lanes{});
    }
  }

  using Lanes = std::make_integer_sequence<int, static_cast<int>(kLanes)>;

  /// Runs of kSide lanes, those of a and b that start at `kFrom` in their pair of runs, in turn.
  template <int kSide, int kFrom, int... lanes>
  static Vec interleave(Vec a, Vec b, std::integer_sequence<int, lanes...>) {
    return __builtin_shufflevector(
        a, b,
        ((lanes & kSide) == 0 ? lanes + kFrom
                              : static_cast<int>(kLanes) + lanes - kSide + kFrom)...);
  }

  template <int kRows>
  static void score_panel(const Real* rows, const Real* panel, std::int64_t dim, Real* scores) {
    Vec sum[kRows][2] = {};
    for (std::int64_t p = 0; p < dim; ++p) {
      const Vec left = S::load(panel + p * kPanel), right = S::load(panel + p * kPanel + kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const Vec value = S::broadcast(rows[r * dim + p]);
        sum[r][0] += value * left;
        sum[r][1] += value * right;
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      S::store(scores + r * kBlockCols, sum[r][0]);
      S::store(scores + r * kBlockCols + kLanes, sum[r][1]);
    }
  }

  template <int kRows>
  static void score_strip(const ScoreArgs<Real>& args) {
    for (std::int64_t c = args.col_begin; c < args.col_end; c += kPanel) {
      score_panel<kRows>(args.rows, args.panels + c * args.dim, args.dim, args.scores + c);
    }
  }

  static void scores(const ScoreArgs<Real>& args) {
    constexpr void (*kByRows[])(const ScoreArgs<Real>&) = {score_strip<1>, score_strip<2>,
                                                           score_strip<3>, score_strip<4>,
                                                           score_strip<5>, score_strip<6>};
    kByRows[args.num_rows - 1](args);
  }

  template <int kRows>
  static void accumulate_strip(const AccumulateArgs<Real>& args) {
    for (std::int64_t p = 0; p < args.dim; p += kPanel) {
      Vec sum[kRows][2];
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        sum[r][0] = S::load(args.sums + r * args.dim + p);
        sum[r][1] = S::load(args.sums + r * args.dim + p + kLanes);
      }
      const Real* values = args.values + p;
      for (std::int64_t c = args.col_begin; c < args.col_end; ++c) {
        const Vec left = S::load(values + c * args.dim);
        const Vec right = S::load(values + c * args.dim + kLanes);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          const Vec weight = S::broadcast(args.weights[r * kBlockCols + c]);
          sum[r][0] += weight * left;
          sum[r][1] += weight * right;
        }
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        S::store(args.sums + r * args.dim + p, sum[r][0]);
        S::store(args.sums + r * args.dim + p + kLanes, sum[r][1]);
      }
    }
  }

  static void accumulate(const AccumulateArgs<Real>& args) {
    constexpr void (*kByRows[])(const AccumulateArgs<Real>&) = {
        accumulate_strip<1>, accumulate_strip<2>, accumulate_strip<3>,
        accumulate_strip<4>, accumulate_strip<5>, accumulate_strip<6>};
    kByRows[args.num_rows - 1](args);
  }

  static void fill_hidden(Real* row, Range visible, Range cols, Real value) {
    const std::int32_t left = visible.begin < cols.end ? visible.begin : cols.end;
    const std::int32_t right = visible.end > cols.begin ? visible.end : cols.begin;
    for (std::int32_t c = cols.begin; c < left; ++c) row[c] = value;
    for (std::int32_t c = right > left ? right : left; c < cols.end; ++c) row[c] = value;
  }

  static Real max_of_row(const Real* row, Range cols) {
    Vec best = S::broadcast(kMinusInfinity);
    for (std::int64_t c = cols.begin; c < cols.end; c += kLanes) {
      best = S::max(S::load(row + c), best);
    }
    return S::reduce_max(best);
  }

  static Real weights_of_row(Real* row, Range cols, Real row_max) {
    Vec left = {}, right = {};
    for (std::int64_t c = cols.begin; c < cols.end; c += kPanel) {
      const Vec a = S::exp2(S::load(row + c) - row_max);
      const Vec b = S::exp2(S::load(row + c + kLanes) - row_max);
      S::store(row + c, a);
      S::store(row + c + kLanes, b);
      left += a;
      right += b;
    }
    return S::reduce_sum(left + right);
  }

  static void softmax(const SoftmaxArgs<Real>& args) {
    constexpr int kPadded = 8;  // kStripRows, rounded up to whole vectors of any width
    Real shift[kPadded] = {}, sum[kPadded] = {};
    const Range cols{args.col_begin, args.col_end};
    for (int r = 0; r < args.num_rows; ++r) {
      Real* row = args.scores + r * kBlockCols;
      const Range visible = args.visible[r];
      if (visible.end <= visible.begin) {
        fill_hidden(row, {cols.end, cols.end}, cols, 0);
        continue;
      }
      fill_hidden(row, visible, cols, kMinusInfinity);
      Real best = max_of_row(row, cols);
      if (best > args.raw_max[r]) args.raw_max[r] = best;
      if (args.softcap != 0) {
        for (std::int64_t c = cols.begin; c < cols.end; c += kLanes) {
          S::store(row + c, S::tanh(S::load(row + c)) * args.softcap);
        }
        fill_hidden(row, visible, cols, kMinusInfinity);
        best = max_of_row(row, cols);
      }
      const Real before = args.row_max[r];
      const Real after = best > before ? best : before;
      shift[r] = best > before ? before - best : 0;  // `before` may be infinite
      args.row_max[r] = after;
      sum[r] = weights_of_row(row, cols, after);
    }
    exp2(shift, kPadded);
    for (int r = 0; r < args.num_rows; ++r) {
      args.row_sum[r] = args.row_sum[r] * shift[r] + sum[r];
      args.rescale[r] = shift[r];
    }
  }

  template <bool kByColumn>
  static void gradient(const GradientArgs<Real>& args) {
    const Range cols{args.col_begin, args.col_end};
    for (int r = 0; r < args.num_rows; ++r) {
      Real* row = args.scores + r * kBlockCols;
      Real* drow = args.dscores + r * kBlockCols;
      for (std::int64_t c = cols.begin; c < cols.end; c += kLanes) {
        const Vec lse = kByColumn ? S::load(args.lse + c) : S::broadcast(args.lse[r]);
        const Vec rest = kByColumn ? S::load(args.lse_rest + c) : S::broadcast(args.lse_rest[r]);
        const Vec delta = kByColumn ? S::load(args.delta + c) : S::broadcast(args.delta[r]);
        Vec score = S::load(row + c);
        Vec slope = S::broadcast(1);
        if (args.softcap != 0) {
          const Vec bounded = S::tanh(score);
          slope -= bounded * bounded;
          score = bounded * args.softcap;
        }
        // No weight is above 1, whatever rounding leaves of two large numbers' difference.
        const Vec weight = S::exp2_up_to(score - lse - rest, 0);
        S::store(row + c, weight);
        S::store(drow + c, weight * (S::load(drow + c) - delta) * slope);
      }
      const bool is_empty = args.visible[r].end <= args.visible[r].begin;
      const Range visible = is_empty ? Range{cols.end, cols.end} : args.visible[r];
      fill_hidden(row, visible, cols, 0);
      fill_hidden(drow, visible, cols, 0);
    }
  }

  static bool all_finite(const Real* values, std::int64_t count) {
    Vec zero = {};
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) zero += S::load(values + i) * static_cast<Real>(0);
    for (; i < count; ++i) zero[0] += values[i] * static_cast<Real>(0);
    return S::reduce_sum(zero) == 0;
  }

  template <Vec (*kFunction)(Vec)>
  static void map(Real* values, std::int64_t count) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) S::store(values + i, kFunction(S::load(values + i)));
    if (i == count) return;
    Vec rest = {};
    __builtin_memcpy(&rest, values + i, static_cast<std::size_t>(count - i) * sizeof(Real));
    rest = kFunction(rest);
    __builtin_memcpy(values + i, &rest, static_cast<std::size_t>(count - i) * sizeof(Real));
  }
  static void exp2(Real* values, std::int64_t count) { map<S::exp2>(values, count); }
  static void tanh(Real* values, std::int64_t count) { map<S::tanh>(values, count); }

  static constexpr MicroKernels<Real> kTable = {
      .panel_cols = static_cast<std::int32_t>(kPanel),
      .pack_panels = pack_panels,
      .scores = scores,
      .accumulate = accumulate,
      .softmax = softmax,
      .gradient_by_row = gradient<false>,
      .gradient_by_column = gradient<true>,
      .all_finite = all_finite,
      .exp2 = exp2,
      .tanh = tanh,
  };
};

/// Both precisions of one instruction set.
struct MicroKernelSet {
  const MicroKernels<float>& float32;
  const MicroKernels<double>& float64;
};

extern const MicroKernelSet kPortableKernels;
extern const MicroKernelSet kAvx2Kernels;

}  // namespace magi::cpu
