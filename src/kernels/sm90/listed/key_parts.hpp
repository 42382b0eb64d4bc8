// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/sm90/listed/params.hpp"

// Deterministic sums of key gradients, if each query has a list of keys. The backward of a run of
// queries writes a row of dk and of dv (a part) for each position of their lists. A stable sort
// orders the parts by key, and one warp adds the parts of a key to its sum.
namespace magi::sm90 {

/// Parts of a run of queries, ordered [rows_q, head_groups, num_positions, heads_kv].
struct KeyPartShape {
  std::int32_t rows_q = 0;  ///< queries of the run
  std::int32_t head_groups = 1;
  std::int32_t num_positions = 0;
  std::int32_t heads_kv = 1;
  std::int32_t rows_k = 0;
  std::int32_t dim_qk = 0;
  std::int32_t dim_v = 0;  ///< 0 for latents, whose dk includes dv

  std::int64_t parts_per_row() const {
    return std::int64_t{head_groups} * num_positions * heads_kv;
  }
  std::int64_t num_parts() const { return rows_q * parts_per_row(); }
  /// The number of keys of all kv heads; key k of kv head h has number h * rows_k + k.
  std::int64_t num_keys() const { return std::int64_t{heads_kv} * rows_k; }
};

/// Returns the shape with as many queries per run as memory for parts allows, at most `most_rows`.
/// Throws InvalidArgument if one query has too many parts, or if there are too many keys.
KeyPartShape with_rows(KeyPartShape shape, std::int64_t most_rows);

/// Offsets in a run's memory, in bytes.
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

/// The sums over all runs.
struct KeySumTargets {
  float* dk = nullptr;  ///< [rows_k, heads_kv, dim_qk], added to
  float* dv = nullptr;  ///< [rows_k, heads_kv, dim_v], added to
};

/// Enqueues the summation of the parts that a run has left in `memory`. `shape` may have fewer
/// queries than the layout. `lists`: those of the run's queries.
void enqueue_key_part_sums(const KeyPartShape& shape, const KeyPartLayout& layout,
                           const ListedIndices& lists, void* memory, const KeySumTargets& targets,
                           cudaStream_t stream);

}  // namespace magi::sm90
