// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/listed_keys.hpp"
#include "kernels/cpu/pack.hpp"

// Backward in two passes, each of which owns what it writes, so that no sum depends on threads:
// tiles of queries write dq, tiles of keys write dk and dv. Both compute p = exp(s - lse) anew.
namespace magi::cpu {

template <typename Real>
struct BackwardCall {
  const BackwardArgs& args;
  const KeyLists* lists;  ///< in place of slices, or null
  Sizes sizes;
  const MicroKernels<Real>& kernels;
  ScoreFactors<Real> factors;
  std::int64_t padded_rows = 0;  ///< rows_q up to a whole block
  Buffer<Real> lse;       ///< [heads_q, padded_rows], base 2; +inf for rows without keys, so p = 0
  Buffer<Real> lse_rest;  ///< what rounding took off a large lse, else 0
  Buffer<Real> delta;     ///< [heads_q, padded_rows], sum of dout * out, less dlse

  StoreMode query_mode() const { return args.is_accumulating ? StoreMode::Add : StoreMode::Write; }
  StoreMode key_mode() const { return args.is_writing_keys ? StoreMode::Write : query_mode(); }
};

template <typename Real>
void backward_queries(const BackwardCall<Real>& call);
template <typename Real>
void backward_keys(const BackwardCall<Real>& call);
/// backward_keys under lists.
template <typename Real>
void backward_listed_keys(const BackwardCall<Real>& call);

/// The two products of a strip before the softmax's gradient: scores from a, dscores from b.
template <typename Real>
struct ScorePair {
  const Real* score_rows;
  const Real* score_panels;
  std::int64_t score_dim;
  const Real* dscore_rows;
  const Real* dscore_panels;
  std::int64_t dscore_dim;
  Real* scores;
  Real* dscores;
};

template <typename Real>
void multiply_pair(const MicroKernels<Real>& kernels, const Strip& strip,
                   const ScorePair<Real>& pair) {
  kernels.scores({.rows = pair.score_rows + strip.row * pair.score_dim,
                  .panels = pair.score_panels,
                  .scores = pair.scores,
                  .dim = pair.score_dim,
                  .num_rows = strip.num_rows,
                  .col_begin = strip.panels.begin,
                  .col_end = strip.panels.end});
  kernels.scores({.rows = pair.dscore_rows + strip.row * pair.dscore_dim,
                  .panels = pair.dscore_panels,
                  .scores = pair.dscores,
                  .dim = pair.dscore_dim,
                  .num_rows = strip.num_rows,
                  .col_begin = strip.panels.begin,
                  .col_end = strip.panels.end});
}

/// Memory of passes over keys, whose rows are keys and whose columns are queries.
template <typename Real>
struct KeyWorkspace {
  PackedBlock<Real> queries;  ///< panels times query_factor
  PackedBlock<Real> douts;
  Buffer<Real> keys;     ///< [num_rows, dim_qk]
  Buffer<Real> values;   ///< [num_rows, dim_v]
  Buffer<Real> scores;   ///< [kStripRows, kBlockCols]
  Buffer<Real> dscores;  ///< like scores

  KeyWorkspace(const BackwardCall<Real>& call, std::int64_t num_rows)
      : queries(call.sizes.dim_qk, call.kernels.panel_cols),
        douts(call.sizes.dim_v, call.kernels.panel_cols),
        keys(make_buffer<Real>(num_rows * call.sizes.dim_qk)),
        values(make_buffer<Real>(num_rows * call.sizes.dim_v)),
        scores(make_buffer<Real>(kStripRows * kBlockCols)),
        dscores(scores) {}
};

/// Figures of the queries on columns.
template <typename Real>
struct ColumnFigures {
  const Real* lse;
  const Real* lse_rest;
  const Real* delta;
};

/// Adds the gradients of a strip of keys through the packed queries to dk and dv of its first row.
template <typename Real>
void add_key_gradients(const BackwardCall<Real>& call, const Strip& strip,
                       const ColumnFigures<Real>& columns, KeyWorkspace<Real>& w, Real* dk,
                       Real* dv) {
  multiply_pair<Real>(call.kernels, strip,
                      {.score_rows = w.keys.data(),
                       .score_panels = w.queries.panels.data(),
                       .score_dim = call.sizes.dim_qk,
                       .dscore_rows = w.values.data(),
                       .dscore_panels = w.douts.panels.data(),
                       .dscore_dim = call.sizes.dim_v,
                       .scores = w.scores.data(),
                       .dscores = w.dscores.data()});
  call.kernels.gradient_by_column({.scores = w.scores.data(),
                                   .dscores = w.dscores.data(),
                                   .visible = strip.visible.data(),
                                   .lse = columns.lse,
                                   .lse_rest = columns.lse_rest,
                                   .delta = columns.delta,
                                   .softcap = call.factors.softcap,
                                   .num_rows = strip.num_rows,
                                   .col_begin = strip.panels.begin,
                                   .col_end = strip.panels.end});
  const auto add = [&](const Buffer<Real>& weights, const PackedBlock<Real>& values, Real* sums) {
    accumulate_strip(call.kernels, strip,
                     AccumulateArgs<Real>{.weights = weights.data(),
                                          .values = values.rows.data(),
                                          .sums = sums,
                                          .dim = values.padded_dim},
                     values.is_finite);
  };
  add(w.scores, w.douts, dv);
  add(w.dscores, w.queries, dk);
}

}  // namespace magi::cpu
