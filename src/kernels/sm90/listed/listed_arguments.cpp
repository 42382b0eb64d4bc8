// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/listed/listed_arguments.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "base/check.hpp"
#include "kernels/sm90/conversions.hpp"

namespace magi::sm90 {

ListedIndices listed_indices(const KeyLists& lists, std::int64_t rows_k) {
  const TensorView& indices = lists.indices;
  // Blocks longer than the keys: only the first exists, and it ends with the keys.
  const auto block_keys =
      to_int(std::min<std::int64_t>(lists.block_keys, std::max<std::int64_t>(rows_k, 1)));
  const std::int64_t num_positions = indices.shape[2] * block_keys;
  if (num_positions > std::numeric_limits<std::int32_t>::max() - 256) {
    throw invalid("keys of a list", num_positions, "up to 2^31 - 257 on a GPU");
  }
  return {.data = static_cast<const std::int32_t*>(indices.data),
          .row_stride = indices.stride[0],
          .head_stride = indices.stride[1],
          .entry_stride = indices.stride[2],
          .entries = to_int(indices.shape[2]),
          .num_positions = to_int(num_positions),
          .block_keys = block_keys,
          .num_blocks = to_int((rows_k + block_keys - 1) / block_keys),
          .rows_k = to_int(rows_k),
          .report = static_cast<unsigned long long*>(lists.report.data)};
}

namespace {

/// Throws if strides exceed 32 bits in units of 16 bytes, in which kernels count rows or heads.
void check_extent(const std::string& what, const TensorView& tensor, std::int64_t count,
                  std::int64_t stride) {
  constexpr std::int64_t kMostBytes = (std::int64_t{1} << 36) - 16;
  const std::int64_t bytes = std::max<std::int64_t>(count - 1, 0) * stride *
                             static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  if (bytes < kMostBytes) return;
  throw invalid(what, bytes, "below 2^36 - 16 under lists on a GPU");
}

}  // namespace

void check_listed_heads(const char* name, const TensorView& rows) {
  check_extent(std::string(name) + "'s bytes from the first head to the last", rows, rows.shape[1],
               rows.stride[1]);
}

ListedShape listed_shape(const TensorView& q, const TensorView& k, const TensorView& v,
                         std::int32_t tile_rows, std::int32_t queries) {
  check_listed_heads("q", q);
  check_extent("k's bytes from the first row to the last", k, k.shape[0], k.stride[0]);
  check_extent("v's bytes from the first row to the last", v, v.shape[0], v.stride[0]);
  ListedShape shape{.rows_q = to_int(q.shape[0]),
                    .queries = queries,
                    .heads_kv = to_int(k.shape[1]),
                    .heads_per_kv = to_int(q.shape[1] / k.shape[1]),
                    .dim_qk = to_int(q.shape[2]),
                    .dim_v = to_int(v.shape[2])};
  shape.query_tiles = (shape.rows_q + queries - 1) / queries;
  shape.head_groups = (shape.heads_per_kv + tile_rows - 1) / tile_rows;
  const std::int64_t num_items =
      std::int64_t{shape.query_tiles} * shape.heads_kv * shape.head_groups;
  if (num_items > std::numeric_limits<std::int32_t>::max() - 1024) {
    throw invalid("number of work items", num_items, "up to 2^31 - 1025");
  }
  shape.num_items = to_int(num_items);
  return shape;
}

}  // namespace magi::sm90
