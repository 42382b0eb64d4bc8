// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/mask.hpp"

namespace magi::planner {

struct BoundLimits {
  std::int32_t num_ranks = 1;
  std::int64_t max_rows = 0;  ///< query rows of the fullest rank
  std::int64_t max_area = 0;  ///< area of the busiest rank
  bool is_shared = true;      ///< keys sit with the queries of the same row
};

/// Key rows that any placement within the limits must move, summed over ranks.
///
/// Take a part of the mask whose queries and keys nobody else shares (a document), with n_k keys
/// and slices chosen so that no pair is counted twice: A pairs in L query rows. A rank with q of
/// those rows and a of those pairs has a row that sees a/q keys, so it needs at least a/q distinct
/// ones. Over all ranks: sum a/q >= A / min(max_rows, L), and of the needed keys at most n_k are at
/// home.
///
/// If every one of the L rows sees a key of its own on one diagonal, and nothing beyond it, its q
/// rows in ascending order see at least a_t + (q - t) keys (row t's, then a new one per later row);
/// the mean over t is a/q + (q-1)/2. Summed: A / min(max_rows, L) + (L - min(P, L)) / 2 - n_k.
///
/// In one causal document of n rows over its own keys, the rank with the last row needs all n keys;
/// its q rows have at least n + q(q-1)/2 pairs <= max_area, so it must fetch n - q.
std::int64_t lower_bound_rows(const Mask& mask, const BoundLimits& limits);

}  // namespace magi::planner
