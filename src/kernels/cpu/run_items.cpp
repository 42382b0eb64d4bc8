// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/run_items.hpp"

#include <cmath>
#include <numbers>

#include "base/math.hpp"

namespace magi::cpu {

QueryTiling tile_queries(const Sizes& sizes, std::int64_t most_tokens) {
  QueryTiling tiling;
  tiling.num_splits = ceil_div(sizes.group, kTileRows);
  tiling.item_heads = ceil_div(sizes.group, tiling.num_splits);
  tiling.num_splits = ceil_div(sizes.group, tiling.item_heads);
  tiling.tile_tokens = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(kTileRows / tiling.item_heads, 1, most_tokens));
  tiling.num_tiles = ceil_div(sizes.rows_q, tiling.tile_tokens);
  tiling.num_items = tiling.num_tiles * sizes.heads_kv * tiling.num_splits;
  return tiling;
}

QueryItem query_item(const QueryTiling& tiling, const Sizes& sizes, std::int64_t index) {
  const std::int64_t tile = tiling.num_tiles - 1 - index % tiling.num_tiles;
  const std::int64_t rest = index / tiling.num_tiles;
  const std::int64_t kv_head = rest / tiling.num_splits;
  const std::int64_t first = rest % tiling.num_splits * tiling.item_heads;
  const auto begin = static_cast<std::int32_t>(tile * tiling.tile_tokens);
  return {.tile = tile,
          .tokens = {begin, std::min(begin + tiling.tile_tokens, sizes.rows_q)},
          .kv_head = kv_head,
          .head_begin = kv_head * sizes.group + first,
          .num_heads = std::min(tiling.item_heads, sizes.group - first)};
}

template <typename Real>
ScoreFactors<Real> score_factors(const AttentionParams& params, std::int64_t dim_qk) {
  const double scale = params.softmax_scale != 0.0 ? params.softmax_scale
                                                   : 1.0 / std::sqrt(static_cast<double>(dim_qk));
  if (params.softcap > 0) {
    return {.scale = static_cast<Real>(scale),
            .query_factor = static_cast<Real>(scale / params.softcap),
            .softcap = static_cast<Real>(params.softcap * std::numbers::log2e),
            .logit_factor = static_cast<Real>(params.softcap)};
  }
  return {.scale = static_cast<Real>(scale),
          .query_factor = static_cast<Real>(scale * std::numbers::log2e),
          .softcap = 0,
          .logit_factor = static_cast<Real>(std::numbers::ln2)};
}

template ScoreFactors<float> score_factors(const AttentionParams&, std::int64_t);
template ScoreFactors<double> score_factors(const AttentionParams&, std::int64_t);

}  // namespace magi::cpu
