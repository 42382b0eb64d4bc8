// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/backward.hpp"

namespace magi::cpu {
namespace {

template <typename Real>
struct Workspace {
  PackedBlock<Real> keys;
  PackedBlock<Real> values;
  Buffer<Real> queries;  ///< [tile_rows, dim_qk], times query_factor
  Buffer<Real> douts;    ///< [tile_rows, dim_v]
  Buffer<Real> sums;     ///< [tile_rows, padded dim_qk]
  Buffer<Real> lse;      ///< [tile_rows]
  Buffer<Real> lse_rest;
  Buffer<Real> delta;
  Buffer<Real> scores;  ///< [kStripRows, kBlockCols]
  Buffer<Real> dscores;
  std::vector<TileRecord> active;

  Workspace(const BackwardCall<Real>& call, std::int64_t tile_rows, std::size_t num_active)
      : keys(call.sizes.dim_qk, call.kernels.panel_cols),
        values(call.sizes.dim_v, call.kernels.panel_cols),
        queries(make_buffer<Real>(tile_rows * call.sizes.dim_qk)),
        douts(make_buffer<Real>(tile_rows * call.sizes.dim_v)),
        sums(make_buffer<Real>(tile_rows * keys.padded_dim)),
        lse(make_buffer<Real>(tile_rows)),
        lse_rest(lse),
        delta(lse),
        scores(make_buffer<Real>(kStripRows * kBlockCols)),
        dscores(scores),
        active(num_active) {}
};

template <typename Real>
void start_rows(const BackwardCall<Real>& call, const QueryItem& item, Workspace<Real>& w) {
  const std::int64_t dim_qk = call.sizes.dim_qk, dim_v = call.sizes.dim_v;
  std::fill(w.sums.begin(), w.sums.end(), Real{0});
  for_each_row(item, [&](std::int64_t row, std::int32_t token, std::int64_t head) {
    Real* query = w.queries.data() + row * dim_qk;
    load_row(call.args.q, token, head, dim_qk, query);
    for (std::int64_t d = 0; d < dim_qk; ++d) query[d] *= call.factors.query_factor;
    load_row(call.args.dout, token, head, dim_v, w.douts.data() + row * dim_v);
    const auto from = static_cast<std::size_t>(head * call.padded_rows + token);
    w.lse[static_cast<std::size_t>(row)] = call.lse[from];
    w.lse_rest[static_cast<std::size_t>(row)] = call.lse_rest[from];
    w.delta[static_cast<std::size_t>(row)] = call.delta[from];
  });
}

template <typename Real>
void run_strip(const BackwardCall<Real>& call, const Strip& strip, Workspace<Real>& w) {
  multiply_pair<Real>(call.kernels, strip,
                      {.score_rows = w.queries.data(),
                       .score_panels = w.keys.panels.data(),
                       .score_dim = call.sizes.dim_qk,
                       .dscore_rows = w.douts.data(),
                       .dscore_panels = w.values.panels.data(),
                       .dscore_dim = call.sizes.dim_v,
                       .scores = w.scores.data(),
                       .dscores = w.dscores.data()});
  call.kernels.gradient_by_row({.scores = w.scores.data(),
                                .dscores = w.dscores.data(),
                                .visible = strip.visible.data(),
                                .lse = w.lse.data() + strip.row,
                                .lse_rest = w.lse_rest.data() + strip.row,
                                .delta = w.delta.data() + strip.row,
                                .softcap = call.factors.softcap,
                                .num_rows = strip.num_rows,
                                .col_begin = strip.panels.begin,
                                .col_end = strip.panels.end});
  accumulate_strip(call.kernels, strip,
                   AccumulateArgs<Real>{.weights = w.dscores.data(),
                                        .values = w.keys.rows.data(),
                                        .sums = w.sums.data() + strip.row * w.keys.padded_dim,
                                        .dim = w.keys.padded_dim},
                   w.keys.is_finite);
}

template <typename Real>
void add_slices(const BackwardCall<Real>& call, const QueryItem& item,
                std::span<const TileRecord> records, Workspace<Real>& w) {
  const TileRows rows{item.tokens.begin, item.num_heads};
  for_each_column_block(records, kBlockCols, w.active, [&](const ColumnBlock& block) {
    const std::int32_t begin = block.cols.begin;
    pack_rows_and_panels(call.kernels, {call.args.k, item.kv_head, begin, block.used}, w.keys);
    pack_rows_and_panels(call.kernels, {call.args.v, item.kv_head, begin, block.used}, w.values);
    for_each_strip(call.args.slices, block, rows, call.kernels.panel_cols,
                   [&](const Strip& strip) { run_strip(call, strip, w); });
  });
}

/// The item's rows are heads of one query.
template <typename Real>
void add_list(const BackwardCall<Real>& call, const QueryItem& item, Workspace<Real>& w) {
  const MicroKernels<Real>& kernels = call.kernels;
  const Range all{0, call.sizes.rows_k};
  for_each_listed_block(
      *call.lists, call.sizes.rows_k, {item.tokens.begin, item.kv_head, all},
      [&](std::span<const std::int32_t> keys) {
        const Range cols = pack_listed_rows(kernels, call.args.k, item.kv_head, keys, w.keys);
        make_panels(kernels, cols, w.keys);
        pack_listed_rows(kernels, call.args.v, item.kv_head, keys, w.values);
        make_panels(kernels, cols, w.values);
        for_each_full_strip(item.num_rows(), static_cast<std::int32_t>(keys.size()),
                            kernels.panel_cols,
                            [&](const Strip& strip) { run_strip(call, strip, w); });
      });
}

template <typename Real>
void run_item(const BackwardCall<Real>& call, const QueryItem& item,
              std::span<const TileRecord> records, Workspace<Real>& w) {
  start_rows(call, item, w);
  if (call.lists != nullptr) {
    add_list(call, item, w);
  } else {
    add_slices(call, item, records, w);
  }
  for_each_row(item, [&](std::int64_t row, std::int32_t token, std::int64_t head) {
    store_row(call.args.dq, token, head, w.sums.data() + row * w.keys.padded_dim,
              call.factors.scale, call.query_mode());
  });
}

}  // namespace

template <typename Real>
void backward_queries(const BackwardCall<Real>& call) {
  const bool has_lists = call.lists != nullptr;
  const QueryTiling tiling = has_lists ? tile_queries(call.sizes, 1) : tile_queries(call.sizes);
  const TileRecords records =
      build_tile_records(call.args.slices, call.sizes.rows_q, tiling.tile_tokens);
  const Work work{tiling.num_items,
                  call.sizes.product_flops(2 * call.sizes.dim_qk + call.sizes.dim_v)};
  run_items(work, Workspace<Real>(call, tiling.tile_rows(), records.longest()),
            [&](std::int64_t index, Workspace<Real>& workspace) {
              const QueryItem item = query_item(tiling, call.sizes, index);
              run_item(call, item, records.of_tile(item.tile), workspace);
            });
}

template void backward_queries(const BackwardCall<float>&);
template void backward_queries(const BackwardCall<double>&);

}  // namespace magi::cpu
