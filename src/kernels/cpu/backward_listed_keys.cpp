// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/backward.hpp"

// dk and dv under lists. An item owns a part of the keys of one kv head and walks all queries in
// order, so no list is transposed and sums do not depend on threads. Rows are listed keys, columns
// the heads of one query.
namespace magi::cpu {
namespace {

/// Small enough for items to share out, large enough that few items read the same lists.
constexpr std::int32_t kPartKeys = 1024;

template <typename Real>
struct Workspace : KeyWorkspace<Real> {
  Buffer<Real> row_dk;  ///< [kStripRows, padded dim_qk]
  Buffer<Real> row_dv;  ///< [kStripRows, padded dim_v]
  Buffer<Real> dk;      ///< [kPartKeys, padded dim_qk]
  Buffer<Real> dv;      ///< [kPartKeys, padded dim_v]
  Buffer<Real> lse;     ///< [kBlockCols], of the columns
  Buffer<Real> lse_rest;
  Buffer<Real> delta;

  explicit Workspace(const BackwardCall<Real>& call)
      : KeyWorkspace<Real>(call, kStripRows),
        row_dk(make_buffer<Real>(kStripRows * this->queries.padded_dim)),
        row_dv(make_buffer<Real>(kStripRows * this->douts.padded_dim)),
        dk(make_buffer<Real>(kPartKeys * this->queries.padded_dim)),
        dv(make_buffer<Real>(kPartKeys * this->douts.padded_dim)),
        lse(make_buffer<Real>(kBlockCols)),
        lse_rest(lse),
        delta(lse) {}
};

struct KeyPart {
  std::int64_t kv_head = 0;
  Range keys;
};

/// Neighbouring query heads of one token.
struct QueryHeads {
  std::int64_t token = 0;
  std::int64_t first_head = 0;
  std::int32_t count = 0;
};

template <typename Real>
void pack_queries(const BackwardCall<Real>& call, const QueryHeads& heads, Workspace<Real>& w) {
  const auto pack = [&](const TensorView& tensor, PackedBlock<Real>& block) {
    return pack_columns(call.kernels, heads.count, block, [&](std::int32_t c, Real* row) {
      load_row(tensor, heads.token, heads.first_head + c, block.padded_dim, row);
    });
  };
  make_panels(call.kernels, pack(call.args.q, w.queries), w.queries, call.factors.query_factor);
  make_panels(call.kernels, pack(call.args.dout, w.douts), w.douts);
  for (std::int32_t c = 0; c < heads.count; ++c) {
    const auto from =
        static_cast<std::size_t>((heads.first_head + c) * call.padded_rows + heads.token);
    const auto to = static_cast<std::size_t>(c);
    w.lse[to] = call.lse[from];
    w.lse_rest[to] = call.lse_rest[from];
    w.delta[to] = call.delta[from];
  }
}

template <typename Real>
void add_row(const Real* from, std::int64_t dim, Real* to) {
  for (std::int64_t d = 0; d < dim; ++d) to[d] += from[d];
}

/// `keys` lie in the part; one that comes again counts again.
template <typename Real>
void add_keys(const BackwardCall<Real>& call, const KeyPart& part, std::int32_t num_cols,
              std::span<const std::int32_t> keys, Workspace<Real>& w) {
  const std::int64_t dim_qk = call.sizes.dim_qk, dim_v = call.sizes.dim_v;
  const std::int64_t dk_dim = w.queries.padded_dim, dv_dim = w.douts.padded_dim;
  const auto visit = [&](Strip strip) {
    const std::int32_t* strip_keys = keys.data() + strip.row;
    for (std::int32_t r = 0; r < strip.num_rows; ++r) {
      load_row(call.args.k, strip_keys[r], part.kv_head, dim_qk, w.keys.data() + r * dim_qk);
      load_row(call.args.v, strip_keys[r], part.kv_head, dim_v, w.values.data() + r * dim_v);
    }
    strip.row = 0;
    std::fill(w.row_dk.begin(), w.row_dk.end(), Real{0});
    std::fill(w.row_dv.begin(), w.row_dv.end(), Real{0});
    add_key_gradients(call, strip, {w.lse.data(), w.lse_rest.data(), w.delta.data()}, w,
                      w.row_dk.data(), w.row_dv.data());
    for (std::int32_t r = 0; r < strip.num_rows; ++r) {
      const std::int64_t at = strip_keys[r] - part.keys.begin;
      add_row(w.row_dk.data() + r * dk_dim, dk_dim, w.dk.data() + at * dk_dim);
      add_row(w.row_dv.data() + r * dv_dim, dv_dim, w.dv.data() + at * dv_dim);
    }
  };
  for_each_full_strip(static_cast<std::int64_t>(keys.size()), num_cols, call.kernels.panel_cols,
                      visit);
}

template <typename Real>
void run_item(const BackwardCall<Real>& call, const KeyPart& part, Workspace<Real>& w) {
  std::fill(w.dk.begin(), w.dk.end(), Real{0});
  std::fill(w.dv.begin(), w.dv.end(), Real{0});
  const std::int64_t begin = part.kv_head * call.sizes.group, end = begin + call.sizes.group;
  for (std::int64_t token = 0; token < call.sizes.rows_q; ++token) {
    for (std::int64_t head = begin; head < end; head += kBlockCols) {
      const QueryHeads heads{
          token, head, static_cast<std::int32_t>(std::min<std::int64_t>(kBlockCols, end - head))};
      bool is_packed = false;
      for_each_listed_block(*call.lists, call.sizes.rows_k, {token, part.kv_head, part.keys},
                            [&](std::span<const std::int32_t> keys) {
                              if (!is_packed) pack_queries(call, heads, w);
                              is_packed = true;
                              add_keys(call, part, heads.count, keys, w);
                            });
    }
  }
  for (std::int32_t key = part.keys.begin; key < part.keys.end; ++key) {
    const std::int64_t at = key - part.keys.begin;
    store_row(call.args.dk, key, part.kv_head, w.dk.data() + at * w.queries.padded_dim,
              call.factors.scale, call.key_mode());
    store_row(call.args.dv, key, part.kv_head, w.dv.data() + at * w.douts.padded_dim, Real{1},
              call.key_mode());
  }
}

}  // namespace

template <typename Real>
void backward_listed_keys(const BackwardCall<Real>& call) {
  const std::int64_t num_parts = ceil_div(call.sizes.rows_k, kPartKeys);
  const Work work{num_parts * call.sizes.heads_kv,
                  call.sizes.product_flops(2 * (call.sizes.dim_qk + call.sizes.dim_v))};
  run_items(work, Workspace<Real>(call), [&](std::int64_t index, Workspace<Real>& workspace) {
    const auto begin = static_cast<std::int32_t>(index % num_parts * kPartKeys);
    const KeyPart part{.kv_head = index / num_parts,
                       .keys = {begin, std::min(begin + kPartKeys, call.sizes.rows_k)}};
    run_item(call, part, workspace);
  });
}

template void backward_listed_keys(const BackwardCall<float>&);
template void backward_listed_keys(const BackwardCall<double>&);

}  // namespace magi::cpu
