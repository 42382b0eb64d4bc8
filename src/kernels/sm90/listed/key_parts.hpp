// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/sm90/listed/params.hpp"

// Sums of gradients of keys with a fixed order, where each query has a list of keys. The backward
// of some queries leaves a row of dk and of dv for each position of their lists (a part). The parts
// are sorted by their keys, those of a key by their places, and one warp adds those of a key to its
// sum.
namespace magi::sm90 {

/// Parts of a run of queries, ordered [rows_q, head_groups, num_positions, heads_kv].
struct KeyPartShape {
  std::int32_t rows_q = 0;  ///< queries of a run
  std::int32_t head_groups = 1;
  std::int32_t num_positions = 0;
  std::int32_t heads_kv = 1;
  std::int32_t rows_k = 0;
  std::int32_t dim_qk = 0;
  std::int32_t dim_v = 0;  ///< 0 for latents, whose dk is both gradients

  std::int64_t parts_per_row() const {
    return std::int64_t{head_groups} * num_positions * heads_kv;
  }
  std::int64_t num_parts() const { return rows_q * parts_per_row(); }
  /// Keys of all kv heads: key k of kv head h is number h * rows_k + k.
  std::int64_t num_keys() const { return std::int64_t{heads_kv} * rows_k; }
};

/// Makes runs with as many queries as memory for parts holds: `most_rows` at most. Throws
/// InvalidArgument where parts of one query, or keys, are too many.
KeyPartShape with_rows(KeyPartShape shape, std::int64_t most_rows);

/// The memory of a run, in bytes from its begin.
struct KeyPartLayout {
  std::size_t dk = 0;         ///< float[num_parts, dim_qk]
  std::size_t dv = 0;         ///< float[num_parts, dim_v]
  std::size_t keys[2] = {};   ///< uint32[num_parts] each: the numbers of keys, or num_keys
  std::size_t parts[2] = {};  ///< int32[num_parts] each
  std::size_t sorting = 0;
  std::size_t sorting_bytes = 0;
  std::size_t size_bytes = 0;
};
KeyPartLayout key_part_layout(const KeyPartShape& shape);

/// The place where sums over all runs go.
struct KeySumTargets {
  float* dk = nullptr;  ///< [rows_k, heads_kv, dim_qk], added to
  float* dv = nullptr;  ///< [rows_k, heads_kv, dim_v], added to
};

/// Enqueues the sums of the parts that a run has left in `memory`; `shape` may have fewer queries
/// than the layout was made for. `lists`: those of its queries.
void enqueue_key_part_sums(const KeyPartShape& shape, const KeyPartLayout& layout,
                           const ListedIndices& lists, void* memory, const KeySumTargets& targets,
                           cudaStream_t stream);

}  // namespace magi::sm90
