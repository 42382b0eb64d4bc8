// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/listed/listed_arguments.hpp"

#include <limits>

#include "base/check.hpp"
#include "kernels/sm90/conversions.hpp"

namespace magi::sm90 {

ListedIndices listed_indices(const KeyLists& lists, std::int64_t rows_k) {
  const TensorView& indices = lists.indices;
  const std::int64_t num_positions = indices.shape[2] * lists.block_keys;
  if (num_positions > std::numeric_limits<std::int32_t>::max() - 256) {
    throw invalid("keys of a list", num_positions, "up to 2^31 - 257 on a GPU");
  }
  return {.data = static_cast<const std::int32_t*>(indices.data),
          .row_stride = indices.stride[0],
          .head_stride = indices.stride[1],
          .entry_stride = indices.stride[2],
          .entries = to_int(indices.shape[2]),
          .num_positions = to_int(num_positions),
          .block_keys = lists.block_keys,
          .num_blocks = to_int((rows_k + lists.block_keys - 1) / lists.block_keys),
          .rows_k = to_int(rows_k),
          .report = static_cast<unsigned long long*>(lists.report.data)};
}

ListedShape listed_shape(const TensorView& q, const TensorView& k, const TensorView& v,
                         std::int32_t tile_rows) {
  ListedShape shape{.rows_q = to_int(q.shape[0]),
                    .heads_kv = to_int(k.shape[1]),
                    .heads_per_kv = to_int(q.shape[1] / k.shape[1]),
                    .dim_qk = to_int(q.shape[2]),
                    .dim_v = to_int(v.shape[2])};
  shape.head_groups = (shape.heads_per_kv + tile_rows - 1) / tile_rows;
  const std::int64_t num_items = std::int64_t{shape.rows_q} * shape.heads_kv * shape.head_groups;
  if (num_items > std::numeric_limits<std::int32_t>::max() - 1024) {
    throw invalid("number of work items", num_items, "up to 2^31 - 1025");
  }
  shape.num_items = to_int(num_items);
  return shape;
}

}  // namespace magi::sm90
