// SPDX-License-Identifier: Apache-2.0
#include "kernels/worklist/backward_list.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/check.hpp"
#include "kernels/worklist/backward_schedule.hpp"
#include "kernels/worklist/dq_order.hpp"
#include "kernels/worklist/tile_join.hpp"

namespace magi {
namespace {

void check_problem(const BackwardProblem& problem, std::span<const BandSlice> slices) {
  if (problem.heads_kv < 1) throw invalid("heads_kv", problem.heads_kv, "1 or more");
  if (problem.heads_q < 1 || problem.heads_q % problem.heads_kv != 0) {
    throw invalid("heads_q", problem.heads_q, "multiples of heads_kv");
  }
  if (problem.num_ctas < 1) throw invalid("num_ctas", problem.num_ctas, "1 or more");
  validate(Mask{problem.rows_q, problem.rows_k, {slices.begin(), slices.end()}});
  check_coming_keys(problem.coming, problem.rows_k, problem.heads_kv);
}

void check_choice(std::int32_t heads_per_kv, const BackwardChoice& choice) {
  const std::int32_t packed = choice.packed_heads;
  const bool is_power = packed >= 0 && std::has_single_bit(std::uint32_t(std::max(packed, 1)));
  if (!is_power || packed > 16 || (packed > 0 && heads_per_kv % packed != 0)) {
    throw invalid("packed_heads", packed,
                  "0 or powers of two up to 16 that divide heads_q / heads_kv");
  }
  if (choice.section_heads < 0) {
    throw invalid("section_heads", choice.section_heads, "0 or more");
  }
  const std::int32_t per_item = choice.heads_per_item;
  if (per_item < 0 || (per_item > 0 && heads_per_kv % per_item != 0) ||
      per_item % std::max(packed, 1) != 0) {
    throw invalid("heads_per_item", per_item,
                  "0 or multiples of packed_heads that divide heads_q / heads_kv");
  }
}

/// The numbers of packed heads that the choice allows, ascending.
std::vector<std::int32_t> allowed_packings(std::int32_t heads_per_kv,
                                           const BackwardChoice& choice) {
  if (choice.packed_heads > 0) return {choice.packed_heads};
  const std::int32_t unit = choice.heads_per_item > 0 ? choice.heads_per_item : heads_per_kv;
  std::vector<std::int32_t> allowed;
  for (std::int32_t heads = 1; heads <= 16 && unit % heads == 0; heads *= 2) {
    allowed.push_back(heads);
  }
  return allowed;
}

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

/// Calls visit(tile index, part) for each k tile that the slice touches.
template <typename Visit>
void for_each_part(const std::vector<KeyTile>& tiles, const BandSlice& slice, Visit visit) {
  const BandSlice band = shrink(slice);
  if (band.q0 >= band.q1) return;
  auto tile =
      std::upper_bound(tiles.begin(), tiles.end(), band.k0,
                       [](std::int32_t key, const KeyTile& work) { return key < work.key_end; });
  for (; tile != tiles.end() && tile->key_begin < band.k1; ++tile) {
    const BandSlice part = shrink(cut_k(band, {tile->key_begin, tile->key_end}));
    if (part.q0 < part.q1) visit(static_cast<std::size_t>(tile - tiles.begin()), part);
  }
}

/// Joins the records of each tile, and closes the gaps that this leaves.
void join_records(std::vector<KeyTile>& tiles, std::vector<KeyRecord>& records) {
  std::int32_t next = 0;
  for (KeyTile& tile : tiles) {
    const auto begin = static_cast<std::size_t>(tile.record_begin);
    const auto count = static_cast<std::size_t>(tile.record_end - tile.record_begin);
    const std::span<KeyRecord> own = std::span(records).subspan(begin, count);
    const std::int32_t num_left = join_parts(own, JoinAlong::Keys);
    std::move(own.begin(), own.begin() + num_left, records.begin() + next);
    tile.record_begin = next;
    tile.record_end = next += num_left;
  }
  records.resize(static_cast<std::size_t>(next));
}

/// Records are grouped by tile.
Tiling fill_tiling(std::vector<KeyTile> tiles, std::span<const BandSlice> slices) {
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
  SliceComponents first{std::vector<std::int32_t>(tiles.size(), -1),
                        std::vector<std::int32_t>(tiles.size(), -1)};
  for (std::size_t i = 0; i < slices.size(); ++i) {
    for_each_part(tiles, slices[i], [&](std::size_t tile, const BandSlice& part) {
      if (begin[tile] == tiles[tile].record_begin) {
        first.by_rows[tile] = components.by_rows[i];
        first.by_rows_and_keys[tile] = components.by_rows_and_keys[i];
      }
      records[static_cast<std::size_t>(begin[tile]++)] = {.band = part};
    });
  }
  join_records(tiles, records);
  std::vector<std::int32_t> component_of = find_components(records);
  return {std::move(tiles), std::move(records), std::move(component_of), std::move(first)};
}

/// The ways to cut the keys: on a plain grid, and where slices begin, if that differs.
std::vector<Tiling> make_tilings(const BackwardProblem& problem, std::int32_t keys,
                                 std::span<const BandSlice> slices) {
  std::vector<std::int32_t> cuts;
  for (const BandSlice& slice : slices) {
    const BandSlice band = shrink(slice);
    if (band.q0 < band.q1) cuts.push_back(band.k0);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<KeyTile> plain = cut_tiles(problem.rows_k, keys, {});
  std::vector<KeyTile> cut = cut_tiles(problem.rows_k, keys, cuts);
  const bool has_cuts = cut != plain;
  std::vector<Tiling> tilings;
  tilings.push_back(fill_tiling(std::move(plain), slices));
  if (has_cuts) tilings.push_back(fill_tiling(std::move(cut), slices));
  return tilings;
}

/// Cuts the records of global k tiles into runs of q tiles, ascending: other k tiles add
/// to the same sums after them, in ascending order too.
void cut_global(Tiling& tiling, const TileCosts& costs) {
  if (costs.num_global == 0) return;
  const auto run =
      static_cast<std::int32_t>(costs.policy.global_run) * costs.shape.rows / costs.packed_heads;
  std::vector<KeyRecord> records;
  std::vector<std::int32_t> component_of;
  for (std::size_t i = 0; i < tiling.tiles.size(); ++i) {
    KeyTile& tile = tiling.tiles[i];
    const std::size_t begin = records.size();
    for (std::int32_t j = tile.record_begin; j < tile.record_end; ++j) {
      const auto record = static_cast<std::size_t>(j);
      const BandSlice& band = tiling.records[record].band;
      const bool is_cut = costs.is_global(static_cast<std::int32_t>(i));
      const std::int32_t width = is_cut ? run : costs.problem.rows_q;
      for (std::int64_t q = band.q0 / width * width; q < band.q1; q += width) {
        const std::int64_t end = std::min<std::int64_t>(q + width, band.q1);
        const Range rows{static_cast<std::int32_t>(q), static_cast<std::int32_t>(end)};
        records.push_back({.band = shrink(cut_q(band, rows))});
        component_of.push_back(tiling.component_of[record]);
      }
    }
    tile.record_begin = static_cast<std::int32_t>(begin);
    tile.record_end = static_cast<std::int32_t>(records.size());
  }
  tiling.records = std::move(records);
  tiling.component_of = std::move(component_of);
}

/// How the keys are cut and heads are packed.
struct TilingChoice {
  Tiling tiling;
  TileCosts costs;
};

/// The tiling and packing that are done first; ties go to the plain grid and to fewer heads.
TilingChoice choose_tiling(const BackwardProblem& problem, const BackwardTileShape& shape,
                           std::span<const BandSlice> slices, const BackwardChoice& choice,
                           const SchedulePolicy& policy) {
  std::vector<Tiling> tilings = make_tilings(problem, shape.keys, slices);
  Tiling* best = nullptr;
  TileCosts best_costs;
  std::int64_t least = 0;
  for (Tiling& tiling : tilings) {
    for (const std::int32_t heads : allowed_packings(problem.heads_q / problem.heads_kv, choice)) {
      TileCosts costs = cost_tiles(problem, shape, tiling, heads, choice, policy);
      const std::int64_t time = predicted_time(costs, choice);
      if (best != nullptr && time >= least) continue;
      best = &tiling;
      best_costs = std::move(costs);
      least = time;
    }
  }
  return {std::move(*best), std::move(best_costs)};
}

}  // namespace

std::int64_t BackwardList::num_slots() const {
  std::int64_t slots = 0;
  for (const TileSpan& span : spans) {
    slots += std::int64_t{span.block_tiles} * span.slot_heads;
  }
  return slots;
}

BackwardList build_backward_list(const BackwardProblem& problem, std::span<const BandSlice> slices,
                                 const BackwardTileShape& shape, const BackwardChoice& choice,
                                 const SchedulePolicy& policy) {
  check_problem(problem, slices);
  check_choice(problem.heads_q / problem.heads_kv, choice);
  BackwardProblem awaited = problem;
  if (choice.is_deterministic || problem.coming.is_awaited) awaited.coming = {};
  auto [tiling, costs] = choose_tiling(awaited, shape, slices, choice, policy);
  if (costs.walk.is_ordered) cut_global(tiling, costs);
  Schedule schedule = choose_schedule(costs, choice);
  BackwardList list;
  list.problem = problem;
  list.shape = shape;
  list.packed_heads = costs.packed_heads;
  list.tile_tokens = shape.rows / costs.packed_heads;
  list.head_groups = problem.heads_q / costs.packed_heads;
  list.is_group_first = costs.walk.is_group_first;
  list.is_ordered = costs.walk.is_ordered;
  list.spans = std::move(schedule.spans);
  list.records = std::move(tiling.records);
  list.tiles.reserve(schedule.order.size());
  for (const std::int32_t tile : schedule.order) {
    list.tiles.push_back(tiling.tiles[static_cast<std::size_t>(tile)]);
  }
  order_dq(list, tiling.component_of, costs.walk.may_convert && shape.has_converter, policy);
  if (!problem.coming.empty()) {
    list.segments = key_segments(problem.coming, problem.rows_k);
    list.arrivals =
        tile_arrivals(problem.coming, list.tiles, list.segments, shape.keys, list.awaits_keys());
  }
  return list;
}

}  // namespace magi
