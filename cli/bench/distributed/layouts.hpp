// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/band.hpp"

// Which rows a rank of a baseline holds, and what of a mask is left between rows of two ranks.
namespace magi::cli {

/// Ranges of the sequence, in local order.
using Rows = std::vector<Range>;

std::int32_t count_rows(const Rows& rows);

/// An equal share of the sequence; `total` is a multiple of `size`.
Rows contiguous_rows(std::int32_t total, std::int32_t size, std::int32_t rank);
/// The chunk of the rank's number from the front and the one from the back; `total` is a multiple
/// of 2 * size.
Rows zigzag_rows(std::int32_t total, std::int32_t size, std::int32_t rank);
/// The index-th of `count` equal shares of the rows, in local order.
Rows share_of(const Rows& rows, std::int32_t count, std::int32_t index);

/// What queries of `rows_q` see of keys of `rows_k`, in local rows of both.
std::vector<BandSlice> slices_between(std::span<const BandSlice> slices, const Rows& rows_q,
                                      const Rows& rows_k);
/// The keys that queries of `rows_q` may see, ascending and disjoint.
Rows seen_keys(std::span<const BandSlice> slices, const Rows& rows_q);

/// The least ranges that hold the queries and the keys of slices, of which there is one at least.
struct Hull {
  Range q, k;
};
Hull hull_of(std::span<const BandSlice> slices);
/// The slices with rows counted from the hull's first.
std::vector<BandSlice> slices_inside(const Hull& hull, std::span<const BandSlice> slices);

}  // namespace magi::cli
