// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/backward.hpp"
#include "mask/slice_lists.hpp"

namespace magi::cpu {
namespace {

constexpr auto kTileKeys = static_cast<std::int32_t>(kTileRows);

/// Columns are queries of one head at a time.
template <typename Real>
struct Workspace : KeyWorkspace<Real> {
  Buffer<Real> dk;  ///< [kTileKeys, padded dim_qk]
  Buffer<Real> dv;  ///< [kTileKeys, padded dim_v]
  std::vector<TileRecord> active;

  Workspace(const BackwardCall<Real>& call, std::size_t num_active)
      : KeyWorkspace<Real>(call, kTileKeys),
        dk(make_buffer<Real>(kTileKeys * this->queries.padded_dim)),
        dv(make_buffer<Real>(kTileKeys * this->douts.padded_dim)),
        active(num_active) {}
};

struct KeyItem {
  std::int64_t tile = 0;
  std::int64_t kv_head = 0;
  Range tokens;
};

template <typename Real>
void start_rows(const BackwardCall<Real>& call, const KeyItem& item, Workspace<Real>& w) {
  const std::int64_t dim_qk = call.sizes.dim_qk, dim_v = call.sizes.dim_v;
  std::fill(w.dk.begin(), w.dk.end(), Real{0});
  std::fill(w.dv.begin(), w.dv.end(), Real{0});
  for (std::int64_t row = 0; row < item.tokens.size(); ++row) {
    const std::int64_t token = item.tokens.begin + row;
    load_row(call.args.k, token, item.kv_head, dim_qk, w.keys.data() + row * dim_qk);
    load_row(call.args.v, token, item.kv_head, dim_v, w.values.data() + row * dim_v);
  }
}

template <typename Real>
void run_item(const BackwardCall<Real>& call, const KeyItem& item,
              std::span<const BandSlice> slices, std::span<const TileRecord> records,
              Workspace<Real>& w) {
  start_rows(call, item, w);
  const TileRows rows{item.tokens.begin, 1};
  for_each_column_block(records, kBlockCols, w.active, [&](const ColumnBlock& block) {
    const std::int32_t begin = block.cols.begin;
    const std::int64_t first_head = item.kv_head * call.sizes.group;
    for (std::int64_t head = first_head; head < first_head + call.sizes.group; ++head) {
      // The factor goes to the queries, as in the forward: so scores are the same to the bit, and
      // large ones differ from lse by no more than the rounding of lse.
      pack_rows_and_panels(call.kernels, {call.args.q, head, begin, block.used}, w.queries,
                           call.factors.query_factor);
      pack_rows_and_panels(call.kernels, {call.args.dout, head, begin, block.used}, w.douts);
      const std::int64_t at = head * call.padded_rows + begin;
      const ColumnFigures<Real> columns{call.lse.data() + at, call.lse_rest.data() + at,
                                        call.delta.data() + at};
      for_each_strip(slices, block, rows, call.kernels.panel_cols, [&](const Strip& strip) {
        add_key_gradients(call, strip, columns, w, w.dk.data() + strip.row * w.queries.padded_dim,
                          w.dv.data() + strip.row * w.douts.padded_dim);
      });
    }
  });
  for (std::int64_t row = 0; row < item.tokens.size(); ++row) {
    const std::int64_t token = item.tokens.begin + row;
    store_row(call.args.dk, token, item.kv_head, w.dk.data() + row * w.queries.padded_dim,
              call.factors.scale, call.key_mode());
    store_row(call.args.dv, token, item.kv_head, w.dv.data() + row * w.douts.padded_dim, Real{1},
              call.key_mode());
  }
}

}  // namespace

template <typename Real>
void backward_keys(const BackwardCall<Real>& call) {
  const std::vector<BandSlice> slices = transpose(call.args.slices);
  const TileRecords records = build_tile_records(slices, call.sizes.rows_k, kTileKeys);
  const std::int64_t num_tiles = ceil_div(call.sizes.rows_k, kTileKeys);
  const Work work{num_tiles * call.sizes.heads_kv,
                  call.sizes.product_flops(2 * (call.sizes.dim_qk + call.sizes.dim_v))};
  run_items(work, Workspace<Real>(call, records.longest()),
            [&](std::int64_t index, Workspace<Real>& workspace) {
              const std::int64_t tile = index % num_tiles;
              const auto begin = static_cast<std::int32_t>(tile * kTileKeys);
              const KeyItem item{.tile = tile,
                                 .kv_head = index / num_tiles,
                                 .tokens = {begin, std::min(begin + kTileKeys, call.sizes.rows_k)}};
              run_item(call, item, slices, records.of_tile(tile), workspace);
            });
}

template void backward_keys(const BackwardCall<float>&);
template void backward_keys(const BackwardCall<double>&);

}  // namespace magi::cpu
