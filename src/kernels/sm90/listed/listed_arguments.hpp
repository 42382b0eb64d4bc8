// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/sm90/listed/params.hpp"
#include "magi/key_lists.hpp"

// From the arguments of a call under lists, which have been checked, to those of its kernels.
namespace magi::sm90 {

/// Throws InvalidArgument where the lists have too many keys.
ListedIndices listed_indices(const KeyLists& lists, std::int64_t rows_k);

/// Throws InvalidArgument where the heads of a query lie too far apart for 32 bits.
void check_listed_heads(const char* name, const TensorView& rows);

/// Makes arguments for tiles of `tile_rows` query heads, or of all heads of several queries; throws
/// InvalidArgument where there are too many.
ListedShape listed_shape(const TensorView& q, const TensorView& k, const TensorView& v,
                         std::int32_t tile_rows, std::int32_t queries = 1);

}  // namespace magi::sm90
