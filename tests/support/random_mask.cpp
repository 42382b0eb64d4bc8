// SPDX-License-Identifier: Apache-2.0
#include "support/random_mask.hpp"

#include <sstream>

namespace magi::testing {

bool sees(const BandSlice& slice, std::int64_t i, std::int64_t j) {
  return i >= slice.q0 && i < slice.q1 && j >= slice.k0 && j < slice.k1 && j - i >= slice.d_min &&
         j - i <= slice.d_max;
}

std::vector<int> dense_counts(const Mask& mask) {
  std::vector<int> counts;
  for (std::int32_t i = 0; i < mask.rows_q; ++i) {
    for (std::int32_t j = 0; j < mask.rows_k; ++j) {
      int count = 0;
      for (const BandSlice& slice : mask.slices) count += sees(slice, i, j) ? 1 : 0;
      counts.push_back(count);
    }
  }
  return counts;
}

std::vector<int> dense_counts(const BandSlice& slice, std::int32_t rows_q, std::int32_t rows_k) {
  return dense_counts(Mask{rows_q, rows_k, {slice}});
}

Matrix matrix_of(const Mask& mask) {
  Matrix matrix;
  for (const std::uint16_t count : expand(mask)) matrix.push_back(count != 0 ? 1 : 0);
  return matrix;
}

std::string describe(const BandSlice& slice) {
  std::ostringstream text;
  text << "{" << slice.q0 << ", " << slice.q1 << ", " << slice.k0 << ", " << slice.k1 << ", "
       << slice.d_min << ", " << slice.d_max << "}";
  return text.str();
}

std::string describe(const Mask& mask) {
  std::ostringstream text;
  text << "{" << mask.rows_q << ", " << mask.rows_k << ", {";
  for (const BandSlice& slice : mask.slices) text << describe(slice) << ", ";
  text << "}}";
  return text.str();
}

}  // namespace magi::testing
