// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/host_device.hpp"
#include "magi/mask.hpp"

// Joins the parts of slices on one tile that are one band: the tile then walks their keys
// (backward: their queries) once. Cut to a tile, slices of different rows become parts of the same
// rows, so far more can be joined here than among whole slices. Every pair stays covered as often
// as before. The host and the device share the rule.
namespace magi {

/// A q tile with more parts keeps them as they are: the device joins them in shared memory.
inline constexpr std::int32_t kMostJoinedParts = 128;

/// Parts may have keys on both sides of any row.
inline constexpr std::int32_t kNoKeyCut = 0;

/// The side along which the parts of a tile are joined first. A join there saves whole tiles; along
/// the other side it saves at most one tile that is not full.
enum class JoinAlong : std::int32_t { Queries, Keys };

/// The key that sorts parts so that neighbours along `along` meet. It is compared without branches,
/// as a warp compares many. Equal bands are ties.
struct JoinKey {
  std::uint64_t words[3] = {};
};

/// `if_equal`: the answer for equal keys.
MAGI_HOST_DEVICE bool comes_before(const JoinKey& a, const JoinKey& b, bool if_equal = false) {
  const bool third = a.words[2] < b.words[2] || (a.words[2] == b.words[2] && if_equal);
  const bool second = a.words[1] < b.words[1] || (a.words[1] == b.words[1] && third);
  return a.words[0] < b.words[0] || (a.words[0] == b.words[0] && second);
}

MAGI_HOST_DEVICE JoinKey join_key(const BandSlice& band, JoinAlong along) {
  const auto pair = [](std::int32_t high, std::int32_t low) {
    constexpr std::uint32_t kSign = 1u << 31;
    return std::uint64_t{static_cast<std::uint32_t>(high) ^ kSign} << 32 |
           (static_cast<std::uint32_t>(low) ^ kSign);
  };
  const std::uint64_t queries = pair(band.q0, band.q1);
  const std::uint64_t keys = pair(band.k0, band.k1);
  const bool is_by_queries = along == JoinAlong::Keys;  // neighbours in keys share their queries
  return {{is_by_queries ? queries : keys, is_by_queries ? keys : queries,
           pair(band.d_min, band.d_max)}};
}

/// Whether `next` begins where `part` ends and both are one band. Both are shrunk, so on the side
/// that they share an infinite bound never binds, and a finite one always ends the band. No part
/// has keys on both sides of `key_cut`.
///
/// The answer is the same after `part` was joined with parts before it, or `next` with parts after
/// it, so checks of neighbours suffice to join a run of parts.
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

/// Parts are cut only if a tile has at most this many, so that the pieces are few enough too.
inline constexpr std::int32_t kMostCutParts = kMostJoinedParts / 2;

/// Returns where to cut the keys of `part` so that those before the cut join `other`, whose rows
/// lie right above or below and see just these keys; part.k0: nowhere. The cut saves at least one
/// tile of keys and adds at most one, for the keys after it.
MAGI_HOST_DEVICE std::int32_t common_keys_end(const BandSlice& part, const BandSlice& other) {
  const std::int32_t seen_by_all = part.d_max == kBandInfinity ? part.k1 : part.q0 + part.d_max + 1;
  if (other.k0 != part.k0 || other.k1 >= part.k1 || other.k1 > seen_by_all) return part.k0;
  const bool is_above =
      part.q1 == other.q0 && part.d_min == -kBandInfinity && other.d_max == kBandInfinity;
  const bool is_below = other.q1 == part.q0 && other.d_min == -kBandInfinity;
  return is_above || is_below ? other.k1 : part.k0;
}

/// Whether joining a tile of `count` parts, cut into pieces, gains: it leaves fewer parts, or some
/// of them end where others continue.
MAGI_HOST_DEVICE bool is_worth_joining(std::int32_t count, std::int32_t num_pieces,
                                       std::int32_t num_left) {
  return num_left < count || (num_left == count && num_pieces > count);
}

/// Cuts some of the parts into two pieces, see common_keys_end.
template <typename Record>
std::vector<Record> cut_parts(std::span<const Record> parts) {
  std::vector<Record> pieces(parts.begin(), parts.end());
  if (parts.size() > static_cast<std::size_t>(kMostCutParts)) return pieces;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const BandSlice& part = parts[i].band;
    std::int32_t end = part.k0;
    for (const Record& other : parts) end = std::max(end, common_keys_end(part, other.band));
    if (end == part.k0) continue;
    pieces[i].band = shrink(cut_k(part, {part.k0, end}));
    pieces.push_back({.band = shrink(cut_k(part, {end, part.k1}))});
  }
  return pieces;
}

/// Joins neighbours along one side. Returns how many parts are left; they are the first ones, in
/// the order of their JoinKey.
template <typename Record>
std::int32_t join_along(std::span<Record> parts, JoinAlong along, std::int32_t key_cut) {
  std::sort(parts.begin(), parts.end(), [&](const Record& a, const Record& b) {
    return comes_before(join_key(a.band, along), join_key(b.band, along));
  });
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

/// Joins the parts of a tile along both sides. Returns the number of parts left; the records after
/// them become empty. If no part can be joined, all stay in place: the tile is walked as if its
/// slices were never joined.
template <typename Record>
std::int32_t join_parts(std::span<Record> parts, JoinAlong first,
                        std::int32_t key_cut = kNoKeyCut) {
  const auto count = static_cast<std::int32_t>(parts.size());
  if (count < 2) return count;
  const bool is_by_queries = first == JoinAlong::Queries;
  std::vector<Record> pieces = is_by_queries ? cut_parts(std::span<const Record>(parts))
                                             : std::vector<Record>(parts.begin(), parts.end());
  const auto num_pieces = static_cast<std::int32_t>(pieces.size());
  const std::int32_t num_first = join_along(std::span(pieces), first, key_cut);
  const std::int32_t num_left =
      join_along(std::span(pieces).first(static_cast<std::size_t>(num_first)),
                 is_by_queries ? JoinAlong::Keys : JoinAlong::Queries, key_cut);
  if (!is_worth_joining(count, num_pieces, num_left)) return count;
  std::copy(pieces.begin(), pieces.begin() + num_left, parts.begin());
  std::fill(parts.begin() + num_left, parts.end(), Record{});
  return num_left;
}

}  // namespace magi
