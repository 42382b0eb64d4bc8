// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/sm90/listed/params.hpp"
#include "magi/key_lists.hpp"

// Turns the checked arguments of a call with key lists into those of its kernels.
namespace magi::sm90 {

/// Throws InvalidArgument if the lists have too many keys.
ListedIndices listed_indices(const KeyLists& lists, std::int64_t rows_k);

/// Throws InvalidArgument if the heads of a query are too far apart for 32 bits.
void check_listed_heads(const char* name, const TensorView& rows);

/// Returns the shape for tiles of `tile_rows` query heads, or of all heads of several queries.
/// Throws InvalidArgument if there are too many items.
ListedShape listed_shape(const TensorView& q, const TensorView& k, const TensorView& v,
                         std::int32_t tile_rows, std::int32_t queries = 1);

}  // namespace magi::sm90
