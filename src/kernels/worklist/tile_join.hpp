// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/host_device.hpp"
#include "magi/mask.hpp"

// The parts that slices leave on one tile, joined where several are one band: the tile then walks
// their keys (backward: their queries) once. Cut to a tile, slices of other rows become parts of
// the same rows, so far more can be joined here than among the slices themselves. Every pair stays
// covered as often as before. One rule for host and device.
namespace magi {

/// A q tile with more parts keeps them as they are: the device joins them in shared memory.
inline constexpr std::int32_t kMostJoinedParts = 128;

/// Parts may have keys on both sides of any row.
inline constexpr std::int32_t kNoKeyCut = 0;

/// What the parts of a tile are joined along first. What is joined there saves whole tiles; along
/// the other side it saves at most one that is not full.
enum class JoinAlong : std::int32_t { Queries, Keys };

/// Whether `a` comes before `b` where neighbours along `along` are sought. Equal bands are ties.
MAGI_HOST_DEVICE bool comes_before(const BandSlice& a, const BandSlice& b, JoinAlong along) {
  const bool is_by_queries = along == JoinAlong::Keys;  // neighbours in keys share their queries
  const std::int32_t first[6] = {is_by_queries ? a.q0 : a.k0,
                                 is_by_queries ? a.q1 : a.k1,
                                 is_by_queries ? a.k0 : a.q0,
                                 is_by_queries ? a.k1 : a.q1,
                                 a.d_min,
                                 a.d_max};
  const std::int32_t second[6] = {is_by_queries ? b.q0 : b.k0,
                                  is_by_queries ? b.q1 : b.k1,
                                  is_by_queries ? b.k0 : b.q0,
                                  is_by_queries ? b.k1 : b.q1,
                                  b.d_min,
                                  b.d_max};
  for (int i = 0; i < 6; ++i) {
    if (first[i] != second[i]) return first[i] < second[i];
  }
  return false;
}

/// Whether `next` goes on where `part` ends and both are one band. Both are shrunk, so a bound that
/// is infinite on the side they share never binds there, and a finite one always ends the band. No
/// part has keys on both sides of `key_cut`.
///
/// The answer stays the same when `part` has been joined with parts before it, or `next` with parts
/// behind it: so a run of parts can be joined by looking at pairs of neighbours alone.
MAGI_HOST_DEVICE bool is_continued(const BandSlice& part, const BandSlice& next, JoinAlong along,
                                   std::int32_t key_cut) {
  if (along == JoinAlong::Keys) {
    return part.k1 == next.k0 && part.q0 == next.q0 && part.q1 == next.q1 &&
           part.d_max == kBandInfinity && next.d_min == -kBandInfinity && next.k0 != key_cut;
  }
  return part.q1 == next.q0 && part.k0 == next.k0 && part.k1 == next.k1 &&
         part.d_min == -kBandInfinity && next.d_max == kBandInfinity;
}

/// The band of a run of parts from its first and its last one.
MAGI_HOST_DEVICE BandSlice joined_run(const BandSlice& first, const BandSlice& last,
                                      JoinAlong along) {
  BandSlice run = first;
  run.q1 = last.q1;
  run.k1 = last.k1;
  if (along == JoinAlong::Keys) {
    run.d_max = last.d_max;
  } else {
    run.d_min = last.d_min;
  }
  return run;
}

/// Joins neighbours along one side. Returns how many parts are left; they are the first ones, in
/// the order of comes_before.
template <typename Record>
std::int32_t join_along(std::span<Record> parts, JoinAlong along, std::int32_t key_cut) {
  std::sort(parts.begin(), parts.end(),
            [&](const Record& a, const Record& b) { return comes_before(a.band, b.band, along); });
  std::size_t num_left = 0;
  for (const Record& part : parts) {
    BandSlice* last = num_left == 0 ? nullptr : &parts[num_left - 1].band;
    if (last != nullptr && is_continued(*last, part.band, along, key_cut)) {
      *last = joined_run(*last, part.band, along);
    } else {
      parts[num_left++] = part;
    }
  }
  return static_cast<std::int32_t>(num_left);
}

/// Joins the parts of a tile, along both sides. Returns how many are left; those behind them become
/// empty records. Where nothing is joined nothing moves: the tile is walked like one whose slices
/// are not joined at all.
template <typename Record>
std::int32_t join_parts(std::span<Record> parts, JoinAlong first,
                        std::int32_t key_cut = kNoKeyCut) {
  if (parts.size() < 2) return static_cast<std::int32_t>(parts.size());
  const std::vector<Record> before(parts.begin(), parts.end());
  const JoinAlong second = first == JoinAlong::Keys ? JoinAlong::Queries : JoinAlong::Keys;
  const std::int32_t num_first = join_along(parts, first, key_cut);
  const std::int32_t num_left =
      join_along(parts.first(static_cast<std::size_t>(num_first)), second, key_cut);
  if (static_cast<std::size_t>(num_left) == parts.size()) {
    std::copy(before.begin(), before.end(), parts.begin());
  }
  std::fill(parts.begin() + num_left, parts.end(), Record{});
  return num_left;
}

}  // namespace magi
