// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/mask.hpp"

namespace magi::planner {

/// The sum of X^i Y^j over the visible pairs (i, j) of a slice at one fixed point (X, Y) modulo
/// 2^61 - 1. Two multisets of pairs with equal sums are equal but for a chance of about 2^-30
/// (Schwartz 1980, Zippel 1979: a polynomial of degree d has at most d roots in p on a line), and
/// sums of geometric series give it for a whole band in O(log rows).
std::uint64_t pair_fingerprint(const BandSlice& slice);

/// Adds modulo 2^61 - 1.
std::uint64_t add_fingerprints(std::uint64_t a, std::uint64_t b);

}  // namespace magi::planner
