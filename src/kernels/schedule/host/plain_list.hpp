// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "kernels/schedule/host/backward_list.hpp"
#include "kernels/schedule/host/plain_rule.hpp"

// The plain schedule of the backward: made by one rule, without a search, from sums, maxima and
// sorts of integers alone. So it can be made anywhere, and in any order of its parts.
//
//   heads     packed by the number of slices: documents have less to walk if q tiles have few
//             tokens; k tiles that few slices see are split and walked head by head
//   k tiles   cut on a plain grid or where slices begin, whichever has the lower cost
//   order     see plain_rule.hpp
//   dQ        k tiles add in the order of the list if the caller asks for equal bits, and under
//             narrow masks
namespace magi {

/// A k tile with more parts keeps them as they are.
inline constexpr std::int32_t kMostPlainParts = 128;

/// Packed heads of a plain list: 1 if slices have 1,536 keys and more on average, else the largest
/// power of two up to 4 that leaves a kv head two groups.
std::int32_t plain_packed_heads(const BackwardProblem& problem, std::int64_t num_slices);

/// The most k tiles of any way to cut the keys: each slice adds one at most.
std::int64_t most_plain_tiles(const BackwardProblem& problem, const BackwardTileShape& shape,
                              std::int64_t num_slices);

PlainRule plain_rule(const BackwardProblem& problem, const BackwardTileShape& shape,
                     std::int32_t packed_heads, std::int64_t most_tiles);

/// The most components of a plain list of `num_slices` slices. The records of a slice join its
/// rows, but those of a slice of one diagonal, d_min == d_max, have different rows in each k
/// tile.
std::int32_t most_plain_components(const BackwardProblem& problem, std::int64_t num_slices,
                                   std::int64_t num_tiles);

/// A plain list without contents, whose spans have room for `most_tiles` k tiles each. Throws
/// InvalidArgument if it would have too many items.
BackwardList plain_list_frame(const BackwardProblem& problem, const BackwardTileShape& shape,
                              std::int32_t packed_heads, std::int64_t most_tiles);

/// Whether items walk head by head, see BackwardList::is_group_first.
bool is_plain_group_first(std::int32_t packed_heads, bool is_ordered);

/// Builds the plain list. Of `choice` it reads only packed_heads (0: plain_packed_heads) and
/// is_deterministic.
BackwardList build_plain_list(const BackwardProblem& problem, std::span<const BandSlice> slices,
                              const BackwardTileShape& shape, const BackwardChoice& choice);

}  // namespace magi
