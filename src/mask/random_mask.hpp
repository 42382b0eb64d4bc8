// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/random.hpp"
#include "magi/mask.hpp"

// One home for the random masks of the tests and of the `verify` command.
namespace magi {

struct RandomMaskOptions {
  std::int32_t min_rows = 1;
  std::int32_t max_rows_q = 96;
  std::int32_t max_rows_k = 96;
  int max_slices = 40;
  bool is_square = false;      ///< rows_k = rows_q (self-attention)
  bool has_free_bands = true;  ///< else only bands of the four types
};

/// A range inside [0, rows): arbitrary, all rows, empty, one row, or ending at multiples of 16.
Range random_range(RandomStream& random, std::int32_t rows);

/// A slice inside [0, rows_q) x [0, rows_k): one of the four types, or a band with free, one-sided,
/// narrow diagonals.
BandSlice random_slice(RandomStream& random, std::int32_t rows_q, std::int32_t rows_k,
                       const RandomMaskOptions& options);

/// A valid mask of 0 to max_slices slices.
Mask random_mask(RandomStream& random, const RandomMaskOptions& options = {});

}  // namespace magi
