// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/listed_keys.hpp"
#include "kernels/cpu/pack.hpp"
#include "kernels/cpu/row_sums.hpp"
#include "kernels/cpu/strips.hpp"

// Flash attention on the CPU: for every tile of queries, one pass over the blocks of keys that its
// slices reach, with online softmax (Milakov and Gimelshein 2018; Dao et al. 2022). A row's result
// depends on its own keys and on their place in the grid of blocks, on nothing else.
namespace magi::cpu {
namespace {

template <typename Real>
struct ForwardCall {
  const ForwardArgs& args;
  const KeyLists* lists;  ///< in place of slices, or null
  const Sizes sizes;
  const MicroKernels<Real>& kernels;
  const ScoreFactors<Real> factors;
  const QueryTiling tiling;
  const TileRecords records;
  RowSums<Real>* sums = nullptr;  ///< what is wanted in place of out and lse
};

template <typename Real>
struct ForwardWorkspace {
  PackedBlock<Real> keys;
  PackedBlock<Real> values;
  Buffer<Real> queries;  ///< [tile_rows, dim_qk], times query_factor
  Buffer<Real> sums;     ///< [tile_rows, padded dim_v]
  Buffer<Real> scores;   ///< [kStripRows, kBlockCols]
  Buffer<Real> row_max;
  Buffer<Real> row_sum;
  Buffer<Real> raw_max;
  std::vector<bool> is_touched;  ///< rows that saw a key in this call
  std::vector<TileRecord> active;

  explicit ForwardWorkspace(const ForwardCall<Real>& call)
      : keys(call.sizes.dim_qk, call.kernels.panel_cols),
        values(call.sizes.dim_v, call.kernels.panel_cols),
        queries(make_buffer<Real>(call.tiling.tile_rows() * call.sizes.dim_qk)),
        sums(make_buffer<Real>(call.tiling.tile_rows() * values.padded_dim)),
        scores(make_buffer<Real>(kStripRows * kBlockCols)),
        row_max(make_buffer<Real>(call.tiling.tile_rows())),
        row_sum(row_max),
        raw_max(row_max),
        is_touched(row_max.size()) {
    active.resize(call.records.longest());
  }
};

/// A finite start keeps -inf out of the differences of maxima.
template <typename Real>
constexpr Real kNoMax = std::numeric_limits<Real>::lowest() / 2;

template <typename Real>
void start_rows(const ForwardCall<Real>& call, const QueryItem& item, ForwardWorkspace<Real>& w) {
  const std::int64_t dim = call.sizes.dim_qk, sums_dim = w.values.padded_dim;
  std::fill(w.row_max.begin(), w.row_max.end(), kNoMax<Real>);
  std::fill(w.row_sum.begin(), w.row_sum.end(), Real{0});
  std::fill(w.raw_max.begin(), w.raw_max.end(), -std::numeric_limits<Real>::infinity());
  std::fill(w.sums.begin(), w.sums.end(), Real{0});
  std::fill(w.is_touched.begin(), w.is_touched.end(), false);
  for_each_row(item, [&](std::int64_t row, std::int32_t token, std::int64_t head) {
    Real* query = w.queries.data() + row * dim;
    load_row(call.args.q, token, head, dim, query);
    for (std::int64_t d = 0; d < dim; ++d) query[d] *= call.factors.query_factor;
    if (!call.args.is_merging) return;
    const Real lse = element<Real>(call.args.lse, token, head);
    if (lse == -std::numeric_limits<Real>::infinity()) return;
    const auto r = static_cast<std::size_t>(row);
    w.row_max[r] = lse * std::numbers::log2e_v<Real>;
    w.row_sum[r] = 1;
    load_row(call.args.out, token, head, sums_dim, w.sums.data() + row * sums_dim);
  });
}

template <typename Real>
void rescale_sums(const Strip& strip, const Real* rescale, std::int64_t dim, Real* sums) {
  for (std::int32_t r = 0; r < strip.num_rows; ++r, sums += dim) {
    if (rescale[r] == 1) continue;
    for (std::int64_t d = 0; d < dim; ++d) sums[d] *= rescale[r];
  }
}

template <typename Real>
void run_strip(const ForwardCall<Real>& call, const Strip& strip, ForwardWorkspace<Real>& w) {
  const std::int64_t dim = call.sizes.dim_qk, sums_dim = w.values.padded_dim;
  Real* sums = w.sums.data() + strip.row * sums_dim;
  call.kernels.scores({.rows = w.queries.data() + strip.row * dim,
                       .panels = w.keys.panels.data(),
                       .scores = w.scores.data(),
                       .dim = dim,
                       .num_rows = strip.num_rows,
                       .col_begin = strip.panels.begin,
                       .col_end = strip.panels.end});
  std::array<Real, kStripRows> rescale;
  call.kernels.softmax({.scores = w.scores.data(),
                        .visible = strip.visible.data(),
                        .row_max = w.row_max.data() + strip.row,
                        .row_sum = w.row_sum.data() + strip.row,
                        .raw_max = w.raw_max.data() + strip.row,
                        .rescale = rescale.data(),
                        .softcap = call.factors.softcap,
                        .num_rows = strip.num_rows,
                        .col_begin = strip.panels.begin,
                        .col_end = strip.panels.end});
  rescale_sums(strip, rescale.data(), sums_dim, sums);
  for (std::int32_t r = 0; r < strip.num_rows; ++r) {
    if (strip.visible[static_cast<std::size_t>(r)].empty()) continue;
    w.is_touched[static_cast<std::size_t>(strip.row + r)] = true;
  }
  accumulate_strip(call.kernels, strip,
                   AccumulateArgs<Real>{.weights = w.scores.data(),
                                        .values = w.values.rows.data(),
                                        .sums = sums,
                                        .dim = sums_dim},
                   w.values.is_finite);
}

/// The denominator of a row: sum * 2^max. Its output is the sum of weighted values times
/// out_factor, over `sum`.
template <typename Real>
struct RowEnd {
  Real& max;
  Real& sum;
  Real out_factor = 1;
};

/// A sink adds exp(sink) to the row's denominator. One that is infinite in base 2 takes all of the
/// row's weight.
template <typename Real>
void add_sinks(const ForwardCall<Real>& call, std::int32_t token, std::int64_t head,
               RowEnd<Real>& row) {
  const bool is_per_row = call.args.params.sink_layout == SinkLayout::RowSinkHead;
  const TensorView& sink = call.args.sink;
  for (std::int64_t s = 0; s < call.sizes.num_sinks; ++s) {
    const std::int64_t at =
        is_per_row ? token * sink.stride[0] + s * sink.stride[1] + head * sink.stride[2]
                   : s * sink.stride[0] + head * sink.stride[1];
    const Real score = static_cast<const Real*>(sink.data)[at] * std::numbers::log2e_v<Real>;
    constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
    if (row.max == kInfinity) return;
    if (score == kInfinity) {
      row.max = kInfinity;
      row.sum = 1;
      row.out_factor = 0;
      return;
    }
    const Real before = row.max;
    row.max = std::max(row.max, score);
    row.sum = row.sum * std::exp2(before - row.max) + std::exp2(score - row.max);
    row.out_factor *= std::exp2(before - row.max);
  }
}

template <typename Real>
void finish_rows(const ForwardCall<Real>& call, const QueryItem& item, ForwardWorkspace<Real>& w) {
  const bool has_sink = call.sizes.num_sinks > 0;
  for_each_row(item, [&](std::int64_t row, std::int32_t token, std::int64_t head) {
    const auto r = static_cast<std::size_t>(row);
    // An earlier result that nothing joins stays as it is, to the bit.
    if (call.args.is_merging && !has_sink && !w.is_touched[r]) return;
    RowEnd<Real> end{.max = w.row_max[r], .sum = w.row_sum[r]};
    if (has_sink) add_sinks(call, token, head, end);
    if (call.sums != nullptr) {
      const auto at = static_cast<std::size_t>(head * call.sizes.rows_q + token);
      call.sums->largest[at] = end.max;
      call.sums->sum[at] = end.sum;
      return;
    }
    const bool is_empty = end.sum == 0;
    const Real out_factor = is_empty ? 0 : end.out_factor / end.sum;
    store_row(call.args.out, token, head, w.sums.data() + row * w.values.padded_dim, out_factor,
              StoreMode::Write);
    const double lse = (static_cast<double>(end.max) + std::log2(static_cast<double>(end.sum))) *
                       std::numbers::ln2;
    element<Real>(call.args.lse, token, head) =
        is_empty ? -std::numeric_limits<Real>::infinity() : static_cast<Real>(lse);
  });
}

template <typename Real>
void attend_to_slices(const ForwardCall<Real>& call, const QueryItem& item,
                      ForwardWorkspace<Real>& w) {
  const TileRows rows{item.tokens.begin, item.num_heads};
  for_each_column_block(
      call.records.of_tile(item.tile), kBlockCols, w.active, [&](const ColumnBlock& block) {
        pack_rows_and_panels(call.kernels,
                             {call.args.k, item.kv_head, block.cols.begin, block.used}, w.keys);
        pack_rows(call.kernels, {call.args.v, item.kv_head, block.cols.begin, block.used},
                  w.values);
        for_each_strip(call.args.slices, block, rows, call.kernels.panel_cols,
                       [&](const Strip& strip) { run_strip(call, strip, w); });
      });
}

/// The item's rows are heads of one query.
template <typename Real>
void attend_to_list(const ForwardCall<Real>& call, const QueryItem& item,
                    ForwardWorkspace<Real>& w) {
  const Range all{0, call.sizes.rows_k};
  for_each_listed_block(
      *call.lists, call.sizes.rows_k, {item.tokens.begin, item.kv_head, all},
      [&](std::span<const std::int32_t> keys) {
        const Range cols = pack_listed_rows(call.kernels, call.args.k, item.kv_head, keys, w.keys);
        make_panels(call.kernels, cols, w.keys);
        pack_listed_rows(call.kernels, call.args.v, item.kv_head, keys, w.values);
        for_each_full_strip(item.num_rows(), static_cast<std::int32_t>(keys.size()),
                            call.kernels.panel_cols,
                            [&](const Strip& strip) { run_strip(call, strip, w); });
      });
}

template <typename Real>
void run_item(const ForwardCall<Real>& call, std::int64_t index, ForwardWorkspace<Real>& w,
              Real* item_max) {
  const QueryItem item = query_item(call.tiling, call.sizes, index);
  start_rows(call, item, w);
  if (call.lists != nullptr) {
    attend_to_list(call, item, w);
  } else {
    attend_to_slices(call, item, w);
  }
  finish_rows(call, item, w);
  for_each_row(item, [&](std::int64_t row, std::int32_t, std::int64_t head) {
    Real& best = item_max[head - item.head_begin];
    best = std::max(best, w.raw_max[static_cast<std::size_t>(row)]);
  });
}

/// Maxima of the items, in order of items, into max_logits.
template <typename Real>
void store_max_logits(const ForwardCall<Real>& call, const Buffer<Real>& item_max) {
  const TensorView& result = call.args.max_logits;
  const auto at = [&](std::int64_t head) -> Real& {
    return static_cast<Real*>(result.data)[head * result.stride[0]];
  };
  if (!call.args.is_merging) {
    for (std::int64_t head = 0; head < call.sizes.heads_q; ++head) {
      at(head) = -std::numeric_limits<Real>::infinity();
    }
  }
  for (std::int64_t index = 0; index < call.tiling.num_items; ++index) {
    const QueryItem item = query_item(call.tiling, call.sizes, index);
    for (std::int64_t h = 0; h < item.num_heads; ++h) {
      const Real best = item_max[static_cast<std::size_t>(index * call.tiling.item_heads + h)];
      Real& logit = at(item.head_begin + h);
      logit = std::max(logit, best * call.factors.logit_factor);
    }
  }
}

template <typename Real>
void forward(const ForwardArgs& args, const KeyLists* lists, const Sizes& sizes, Isa isa,
             RowSums<Real>* sums = nullptr) {
  const QueryTiling tiling = lists != nullptr ? tile_queries(sizes, 1) : tile_queries(sizes);
  const ForwardCall<Real> call{
      .args = args,
      .lists = lists,
      .sizes = sizes,
      .kernels = micro_kernels<Real>(isa),
      .factors = score_factors<Real>(args.params, sizes.dim_qk),
      .tiling = tiling,
      .records = build_tile_records(args.slices, sizes.rows_q, tiling.tile_tokens),
      .sums = sums};
  Buffer<Real> item_max(static_cast<std::size_t>(tiling.num_items * tiling.item_heads),
                        -std::numeric_limits<Real>::infinity());
  const Work work{tiling.num_items, sizes.product_flops(sizes.dim_qk + sizes.dim_v)};
  run_items(work, ForwardWorkspace<Real>(call),
            [&](std::int64_t item, ForwardWorkspace<Real>& workspace) {
              run_item(call, item, workspace, item_max.data() + item * tiling.item_heads);
            });
  if (!args.max_logits.empty()) store_max_logits(call, item_max);
}

}  // namespace

template <typename Real>
RowSums<Real> row_sums(const ForwardArgs& args, const KeyLists* lists, const Sizes& sizes,
                       Isa isa) {
  RowSums<Real> sums;
  sums.largest = make_buffer<Real>(sizes.heads_q * sizes.rows_q);
  sums.sum = sums.largest;
  forward<Real>(args, lists, sizes, isa, &sums);
  return sums;
}

template RowSums<float> row_sums(const ForwardArgs&, const KeyLists*, const Sizes&, Isa);
template RowSums<double> row_sums(const ForwardArgs&, const KeyLists*, const Sizes&, Isa);

namespace {

void forward(const ForwardArgs& args, const KeyLists* lists, const Sizes& sizes, Isa isa) {
  if (sizes.real == DType::Float64) {
    forward<double>(args, lists, sizes, isa);
  } else {
    forward<float>(args, lists, sizes, isa);
  }
}

}  // namespace

void attention_forward(const ForwardArgs& args, Isa isa) {
  forward(args, nullptr, check_args(args), isa);
}

void attention_forward(const ForwardArgs& args, const KeyLists& lists, Isa isa) {
  Sizes sizes = check_args(args, &lists);
  const ListTotals totals = count_lists(lists, sizes.rows_k);
  sizes.area = totals.pairs / sizes.heads_kv;
  if (!lists.report.empty()) {
    auto* report = static_cast<std::int64_t*>(lists.report.data);
    report[0] = totals.num_bad;
    report[lists.report.stride[0]] = totals.first_bad;
  }
  forward(args, &lists, sizes, isa);
}

}  // namespace magi::cpu

void magi::attention_forward_cpu(const ForwardArgs& args) {
  cpu::attention_forward(args, cpu::Isa::Best);
}

void magi::attention_forward_cpu(const ForwardArgs& args, const KeyLists& lists) {
  cpu::attention_forward(args, lists, cpu::Isa::Best);
}
