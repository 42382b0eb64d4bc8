// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/band.hpp"

namespace magi {

/// Keeps a mistaken step of one row on a million, or what a short text asks for, from filling the
/// memory: these slices take 400 MB.
inline constexpr std::int64_t kMaxSlices = std::int64_t{1} << 24;

/// Whether `next` goes on where `slice` ends in keys, with the same queries, and both are one band.
/// Slices are shrunk: a bound that is infinite on the side they share never binds there.
bool is_continued_by(const BandSlice& slice, const BandSlice& next);

/// Joins slices that are one band together: neighbours in keys that share their queries, then
/// neighbours in queries that share their keys and have no bounds. Every pair is covered as often
/// as before. In and out the slices are shrunk; they come back in order of q0, k0, q1, k1 and
/// bounds. A tile of a kernel that meets two such slices would walk their keys twice.
void join_neighbours(std::vector<BandSlice>& slices);

/// The same pairs with queries and keys in each other's place.
inline std::vector<BandSlice> transpose(std::span<const BandSlice> slices) {
  std::vector<BandSlice> result;
  result.reserve(slices.size());
  for (const BandSlice& s : slices) result.push_back({s.k0, s.k1, s.q0, s.q1, -s.d_max, -s.d_min});
  return result;
}

}  // namespace magi
