// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/key_tiling.hpp"

#include <cstddef>
#include <numeric>
#include <utility>

#include "base/check.hpp"
#include "kernels/schedule/host/dq_order.hpp"
#include "kernels/schedule/host/slice_components.hpp"
#include "kernels/schedule/host/tile_join.hpp"

namespace magi {
namespace {

constexpr std::int64_t kMaxRecords = std::numeric_limits<std::int32_t>::max();

/// Keys [0, rows_k) in tiles, a new one at every cut (ascending).
std::vector<KeyTile> cut_tiles(std::int32_t rows_k, std::int32_t keys,
                               std::span<const std::int32_t> cuts) {
  std::vector<KeyTile> tiles;
  auto cut = cuts.begin();
  for (std::int32_t begin = 0; begin < rows_k;) {
    while (cut != cuts.end() && *cut <= begin) ++cut;
    std::int32_t end = std::min(rows_k - begin, keys) + begin;
    if (cut != cuts.end()) end = std::min(end, *cut);
    tiles.push_back({.key_begin = begin, .key_end = end});
    begin = end;
  }
  return tiles;
}

/// The first tile that ends after a key.
std::vector<KeyTile>::const_iterator tile_of_key(const std::vector<KeyTile>& tiles,
                                                 std::int32_t key) {
  return std::ranges::upper_bound(tiles, key, {}, &KeyTile::key_end);
}

/// A shrunk slice has a record on every tile that it touches, since all of its keys are seen.
void check_num_records(const std::vector<KeyTile>& tiles, std::span<const BandSlice> slices) {
  std::int64_t num_records = 0;
  for (const BandSlice& slice : slices) {
    const BandSlice band = shrink(slice);
    if (band.q0 >= band.q1) continue;
    num_records += tile_of_key(tiles, band.k1 - 1) - tile_of_key(tiles, band.k0) + 1;
  }
  if (num_records > kMaxRecords) {
    throw invalid("number of records of k tiles", num_records, "up to 2^31 - 1");
  }
}

/// Joins the records of each tile, and closes the gaps after them.
void join_records(std::vector<KeyTile>& tiles, std::vector<KeyRecord>& records,
                  std::int32_t most_joined) {
  std::int32_t next = 0;
  for (KeyTile& tile : tiles) {
    const auto begin = static_cast<std::size_t>(tile.record_begin);
    const auto count = static_cast<std::size_t>(tile.record_end - tile.record_begin);
    const std::span<KeyRecord> own = std::span(records).subspan(begin, count);
    const bool is_joined = std::ssize(own) <= most_joined;
    const std::int32_t num_left =
        is_joined ? join_parts(own, JoinAlong::Keys) : static_cast<std::int32_t>(count);
    std::move(own.begin(), own.begin() + num_left, records.begin() + next);
    tile.record_begin = next;
    tile.record_end = next += num_left;
  }
  records.resize(static_cast<std::size_t>(next));
}

}  // namespace

Tiling fill_tiling(std::vector<KeyTile> tiles, std::span<const BandSlice> slices,
                   std::int32_t most_joined) {
  check_num_records(tiles, slices);
  std::vector<std::int32_t> begin(tiles.size() + 1, 0);
  for (const BandSlice& slice : slices) {
    for_each_part(tiles, slice, [&](std::size_t tile, const BandSlice&) { ++begin[tile + 1]; });
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<KeyRecord> records(static_cast<std::size_t>(begin.back()));
  for (std::size_t tile = 0; tile < tiles.size(); ++tile) {
    tiles[tile].record_begin = begin[tile];
    tiles[tile].record_end = begin[tile + 1];
  }
  const SliceComponents components = connect_slices(slices);
  SliceComponents of_first{std::vector<std::int32_t>(tiles.size(), -1),
                           std::vector<std::int32_t>(tiles.size(), -1)};
  for (std::size_t i = 0; i < slices.size(); ++i) {
    for_each_part(tiles, slices[i], [&](std::size_t tile, const BandSlice& part) {
      if (begin[tile] == tiles[tile].record_begin) {
        of_first.by_rows[tile] = components.by_rows[i];
        of_first.by_rows_and_keys[tile] = components.by_rows_and_keys[i];
      }
      records[static_cast<std::size_t>(begin[tile]++)] = {.band = part};
    });
  }
  join_records(tiles, records, most_joined);
  std::vector<std::int32_t> component_of = find_components(records);
  return {std::move(tiles), std::move(records), std::move(component_of), std::move(of_first)};
}

std::vector<std::vector<KeyTile>> key_tilings(std::int32_t rows_k, std::int32_t keys,
                                              std::span<const BandSlice> slices) {
  std::vector<std::int32_t> cuts;
  for (const BandSlice& slice : slices) {
    const BandSlice band = shrink(slice);
    if (band.q0 < band.q1) cuts.push_back(band.k0);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<std::vector<KeyTile>> tilings;
  tilings.push_back(cut_tiles(rows_k, keys, {}));
  std::vector<KeyTile> cut = cut_tiles(rows_k, keys, cuts);
  if (cut != tilings.front()) tilings.push_back(std::move(cut));
  return tilings;
}

}  // namespace magi
