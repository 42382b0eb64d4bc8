// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "magi/mask.hpp"
#include "mask/random_mask.hpp"

// Random masks (from the mask layer, shared with the `verify` command) and oracles that use nothing
// of the band algebra but the definition of visibility.
namespace magi::testing {

/// The definition: q0 <= i < q1, k0 <= j < k1, d_min <= j - i <= d_max.
bool sees(const BandSlice& slice, std::int64_t i, std::int64_t j);

/// Multiplicity of every pair by the definition, row-major [rows_q, rows_k].
std::vector<int> dense_counts(const Mask& mask);
std::vector<int> dense_counts(const BandSlice& slice, std::int32_t rows_q, std::int32_t rows_k);

using Matrix = std::vector<std::uint8_t>;

/// 1 for every pair that the mask holds, 0 for the others, row-major [rows_q, rows_k].
Matrix matrix_of(const Mask& mask);

/// The mask as a C++-like literal, for messages of failing random tests.
std::string describe(const Mask& mask);
std::string describe(const BandSlice& slice);

}  // namespace magi::testing
