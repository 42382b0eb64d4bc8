// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "kernels/schedule/host/backward_list.hpp"
#include "kernels/schedule/host/plain_rule.hpp"

// The plain schedule of the backward: made by one rule, without a search, from sums, maxima and
// sorts of integers alone. So it can be made anywhere, and in any order of its parts.
//
//   heads     as many packed as divide those of a kv head: then q tiles have the fewest tokens
//   k tiles   cut on a plain grid or where slices begin, whatever has the lower cost
//   order     see plain_rule.hpp; no k tile is split
//   dQ        sums are taken in the order of the list
namespace magi {

/// A k tile with more parts keeps them as they are.
inline constexpr std::int32_t kMostPlainParts = 128;

/// Packed heads of a plain list: the largest power of two up to 16 that divides the heads of a kv
/// head.
std::int32_t plain_packed_heads(std::int32_t heads_per_kv);

PlainRule plain_rule(const BackwardProblem& problem, const BackwardTileShape& shape,
                     std::int32_t packed_heads);

/// Components that a plain list of so many slices and k tiles may have. The records of a slice join
/// their rows, but those of a slice of one diagonal, d_min == d_max, have rows of their own in each
/// k tile.
std::int32_t most_plain_components(const BackwardProblem& problem, std::int64_t num_slices,
                                   std::int64_t num_tiles);

/// A plain list of `num_tiles` k tiles without contents. Throws InvalidArgument where it would have
/// too many items.
BackwardList plain_list_frame(const BackwardProblem& problem, const BackwardTileShape& shape,
                              std::int32_t packed_heads, std::int64_t num_tiles);

/// The plain list; of `choice` only packed_heads is heard, 0: plain_packed_heads.
BackwardList build_plain_list(const BackwardProblem& problem, std::span<const BandSlice> slices,
                              const BackwardTileShape& shape, const BackwardChoice& choice);

}  // namespace magi
