// SPDX-License-Identifier: Apache-2.0
#include "mask/random_mask.hpp"

#include <algorithm>

namespace magi {

namespace {

/// Row counts: often one or the most, else anything.
std::int32_t random_rows(RandomStream& random, std::int32_t low, std::int32_t high) {
  const int kind = random.between(0, 9);
  if (kind == 0) return low;
  if (kind <= 2) return high;
  return random.between(low, high);
}

}  // namespace

Range random_range(RandomStream& random, std::int32_t rows) {
  const int kind = random.between(0, 11);
  if (kind == 0 || rows == 0) {
    const std::int32_t at = random.between(0, rows);
    return {at, at};
  }
  if (kind == 1) {
    const std::int32_t at = random.between(0, rows - 1);
    return {at, at + 1};
  }
  if (kind <= 3) return {0, rows};
  std::int32_t a = random.between(0, rows);
  std::int32_t b = random.between(0, rows);
  if (kind <= 6) {
    a = a / 16 * 16;
    b = std::min((b + 15) / 16 * 16, rows);
  }
  return {std::min(a, b), std::max(a, b)};
}

BandSlice random_slice(RandomStream& random, std::int32_t rows_q, std::int32_t rows_k,
                       const RandomMaskOptions& options) {
  const Range q = random_range(random, rows_q);
  const Range k = random_range(random, rows_k);
  const int kind = random.between(0, options.has_free_bands ? 7 : 3);
  if (kind <= 3) return band_slice(q, k, static_cast<MaskType>(kind));
  BandSlice slice{q.begin, q.end, k.begin, k.end};
  // Diagonals a little beyond the rectangle's own, so that some bind nowhere.
  const std::int32_t low = k.begin - q.end - 2;
  const std::int32_t high = k.end - q.begin + 2;
  const std::int32_t a = random.between(low, high);
  const std::int32_t b = random.between(low, high);
  if (kind == 5) {
    (random.chance(50) ? slice.d_min : slice.d_max) = a;
  } else if (kind == 6) {
    slice.d_min = a;
    slice.d_max = a + random.between(0, 3);
  } else {
    slice.d_min = std::min(a, b);
    slice.d_max = std::max(a, b);
  }
  return slice;
}

Mask random_mask(RandomStream& random, const RandomMaskOptions& options) {
  Mask mask;
  mask.rows_q = random_rows(random, options.min_rows, options.max_rows_q);
  mask.rows_k =
      options.is_square ? mask.rows_q : random_rows(random, options.min_rows, options.max_rows_k);
  const int few = std::min(options.max_slices, 4);
  const int num_slices = random.between(0, random.chance(50) ? few : options.max_slices);
  for (int n = 0; n < num_slices; ++n) {
    mask.slices.push_back(random_slice(random, mask.rows_q, mask.rows_k, options));
  }
  return mask;
}

}  // namespace magi
