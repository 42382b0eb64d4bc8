// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/backward_list.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "base/check.hpp"
#include "kernels/schedule/host/backward_schedule.hpp"
#include "kernels/schedule/host/dq_order.hpp"
#include "kernels/schedule/host/key_tiling.hpp"
#include "kernels/schedule/host/plain_list.hpp"

namespace magi {
namespace {

void check_problem(const BackwardProblem& problem, std::span<const BandSlice> slices) {
  if (problem.heads_kv < 1) throw invalid("heads_kv", problem.heads_kv, "1 or more");
  if (problem.heads_q < 1 || problem.heads_q % problem.heads_kv != 0) {
    throw invalid("heads_q", problem.heads_q, "multiples of heads_kv");
  }
  if (problem.num_ctas < 1) throw invalid("num_ctas", problem.num_ctas, "1 or more");
  validate(Mask{problem.rows_q, problem.rows_k, {slices.begin(), slices.end()}});
  check_in_flight_keys(problem.coming, problem.rows_k, problem.heads_kv);
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

/// Refuses in-flight keys, and choices of a plain list other than the packed heads.
void check_plain(const BackwardProblem& problem, const BackwardChoice& choice) {
  const auto check_none = [](const char* name, std::int32_t value) {
    if (value != 0) throw invalid(name, value, "0 where is_plain is true");
  };
  check_none("heads_per_item", choice.heads_per_item);
  check_none("section_heads", choice.section_heads);
  check_none("head_walk", choice.is_group_first.has_value() ? 1 : 0);
  check_none("coming.num_sources", problem.coming.num_sources);
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

/// Has every k tile walk its last rows first. Items add to a sum in the order of the list: one that
/// began with its first rows would come late to the last ones, where the items after it begin and
/// wait.
void put_last_rows_first(Tiling& tiling) {
  for (const KeyTile& tile : tiling.tiles) {
    std::stable_sort(tiling.records.begin() + tile.record_begin,
                     tiling.records.begin() + tile.record_end,
                     [](const KeyRecord& a, const KeyRecord& b) { return a.band.q1 > b.band.q1; });
  }
  tiling.component_of = find_components(tiling.records);
}

/// The way the keys are cut and heads are packed.
struct TilingChoice {
  Tiling tiling;
  TileCosts costs;
};

/// The tiling and packing that end first; ties go to the plain grid and to fewer heads.
TilingChoice choose_tiling(const BackwardProblem& problem, const BackwardTileShape& shape,
                           std::span<const BandSlice> slices, const BackwardChoice& choice) {
  std::vector<Tiling> tilings;
  for (std::vector<KeyTile>& tiles : key_tilings(problem.rows_k, shape.keys, slices)) {
    tilings.push_back(fill_tiling(std::move(tiles), slices));
  }
  Tiling* best = nullptr;
  TileCosts best_costs;
  std::int64_t least = 0;
  for (Tiling& tiling : tilings) {
    for (const std::int32_t heads : allowed_packings(problem.heads_q / problem.heads_kv, choice)) {
      TileCosts costs = cost_tiles(problem, shape, tiling, heads, choice);
      const std::int64_t time = predicted_time(costs, choice);
      if (best != nullptr && time >= least) continue;
      best = &tiling;
      best_costs = std::move(costs);
      least = time;
    }
  }
  return {std::move(*best), std::move(best_costs)};
}

/// The list of the candidate that ends first.
BackwardList build_searched_list(const BackwardProblem& problem, std::span<const BandSlice> slices,
                                 const BackwardTileShape& shape, const BackwardChoice& choice) {
  BackwardProblem awaited = problem;
  if (choice.is_deterministic || problem.coming.is_awaited) awaited.coming = {};
  auto [tiling, costs] = choose_tiling(awaited, shape, slices, choice);
  if (costs.walk.is_ordered) {
    if (costs.num_global == 0) put_last_rows_first(tiling);
    cut_global(tiling, costs);
  }
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
  std::optional<Conversions> conversions;
  if (costs.walk.conversion_distance) conversions = {.distance = *costs.walk.conversion_distance};
  order_dq(list, tiling.component_of, conversions);
  if (!problem.coming.empty()) {
    list.segments = key_segments(problem.coming, problem.rows_k);
    list.arrivals =
        tile_arrivals(problem.coming, list.tiles, list.segments, shape.keys, list.awaits_keys());
  }
  return list;
}

}  // namespace

std::int64_t BackwardList::num_slots() const {
  std::int64_t slots = 0;
  for (const TileSpan& span : spans) {
    const std::int64_t end = span.slot_begin + std::int64_t{span.block_tiles} * span.slot_heads;
    slots = std::max(slots, end);
  }
  return slots;
}

BackwardList build_backward_list(const BackwardProblem& problem, std::span<const BandSlice> slices,
                                 const BackwardTileShape& shape, const BackwardChoice& choice) {
  check_problem(problem, slices);
  check_choice(problem.heads_q / problem.heads_kv, choice);
  if (choice.is_plain) check_plain(problem, choice);
  BackwardList list = choice.is_plain ? build_plain_list(problem, slices, shape, choice)
                                      : build_searched_list(problem, slices, shape, choice);
  list.seen = find_seen_rows(problem.rows_q, problem.rows_k, slices);
  return list;
}

}  // namespace magi
