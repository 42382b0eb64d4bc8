// SPDX-License-Identifier: Apache-2.0
#include "kernels/worklist/backward_list.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <queue>

#include "base/check.hpp"
#include "kernels/worklist/query_run.hpp"

namespace magi {
namespace {

using Costs = std::vector<std::int64_t>;

void check_problem(const BackwardProblem& problem, std::span<const BandSlice> slices) {
  if (problem.heads_kv < 1) throw invalid("heads_kv", problem.heads_kv, "1 or more");
  if (problem.heads_q < 1 || problem.heads_q % problem.heads_kv != 0) {
    throw invalid("heads_q", problem.heads_q, "multiples of heads_kv");
  }
  if (problem.num_ctas < 1) throw invalid("num_ctas", problem.num_ctas, "1 or more");
  validate(Mask{problem.rows_q, problem.rows_k, {slices.begin(), slices.end()}});
}

std::int32_t heads_per_kv(const BackwardList& list) {
  return list.problem.heads_q / list.problem.heads_kv;
}

void check_choice(const BackwardList& list, const BackwardChoice& choice) {
  const std::int32_t group = heads_per_kv(list);
  const std::int32_t packed = choice.packed_heads;
  const bool is_power = packed >= 0 && std::has_single_bit(std::uint32_t(std::max(packed, 1)));
  if (!is_power || packed > 16 || (packed > 0 && group % packed != 0)) {
    throw invalid("packed_heads", packed,
                  "0 or powers of two up to 16 that divide heads_q / heads_kv");
  }
  if (choice.columns_per_section < 0) {
    throw invalid("columns_per_section", choice.columns_per_section, "0 or more");
  }
  const std::int32_t per_item = choice.heads_per_item;
  if (per_item < 0 || (per_item > 0 && group % per_item != 0) ||
      per_item % std::max(packed, 1) != 0) {
    throw invalid("heads_per_item", per_item,
                  "0 or multiples of packed_heads that divide heads_q / heads_kv");
  }
}

/// Keys [0, rows_k) in tiles, a new one at every cut (ascending).
std::vector<KeyTileWork> cut_tiles(const BackwardList& list, std::span<const std::int32_t> cuts) {
  std::vector<KeyTileWork> tiles;
  auto cut = cuts.begin();
  for (std::int32_t begin = 0; begin < list.problem.rows_k;) {
    while (cut != cuts.end() && *cut <= begin) ++cut;
    std::int32_t end = std::min(list.problem.rows_k - begin, list.shape.keys) + begin;
    if (cut != cuts.end()) end = std::min(end, *cut);
    tiles.push_back({.key_begin = begin, .key_end = end});
    begin = end;
  }
  return tiles;
}

/// Calls visit(tile index, record) for each k tile that the slice touches.
template <typename Visit>
void for_each_record(const std::vector<KeyTileWork>& tiles, const BandSlice& slice, Visit visit) {
  const BandSlice band = shrink(slice);
  if (band.q0 >= band.q1) return;
  auto tile = std::upper_bound(
      tiles.begin(), tiles.end(), band.k0,
      [](std::int32_t key, const KeyTileWork& work) { return key < work.key_end; });
  for (; tile != tiles.end() && tile->key_begin < band.k1; ++tile) {
    const BandSlice part = shrink(cut_k(band, {tile->key_begin, tile->key_end}));
    if (part.q0 < part.q1) visit(static_cast<std::size_t>(tile - tiles.begin()), part);
  }
}

/// Records grouped by tile, in order of the slices inside each.
void fill_records(BackwardList& list, std::span<const BandSlice> slices) {
  std::vector<std::int32_t> begin(list.tiles.size() + 1, 0);
  for (const BandSlice& slice : slices) {
    for_each_record(list.tiles, slice,
                    [&](std::size_t tile, const BandSlice&) { ++begin[tile + 1]; });
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  list.records.resize(static_cast<std::size_t>(begin.back()));
  for (std::size_t tile = 0; tile < list.tiles.size(); ++tile) {
    list.tiles[tile].record_begin = begin[tile];
    list.tiles[tile].record_end = begin[tile + 1];
  }
  for (const BandSlice& slice : slices) {
    for_each_record(list.tiles, slice, [&](std::size_t tile, const BandSlice& part) {
      list.records[static_cast<std::size_t>(begin[tile]++)] = {.band = part};
    });
  }
}

std::span<const KeyRecord> records_of(const BackwardList& list, const KeyTileWork& work) {
  return std::span(list.records)
      .subspan(static_cast<std::size_t>(work.record_begin),
               static_cast<std::size_t>(work.record_end - work.record_begin));
}

/// q tiles of each k tile, for one head group.
Costs tile_costs(const BackwardList& list, std::int32_t tile_tokens) {
  const int shift = std::countr_zero(static_cast<std::uint32_t>(tile_tokens));
  Costs costs;
  costs.reserve(list.tiles.size());
  for (const KeyTileWork& work : list.tiles) {
    std::int64_t steps = 0;
    for (const KeyRecord& record : records_of(list, work)) {
      const QueryRun run = query_run(record.band, work.key_begin, list.shape.keys, shift);
      steps += run.tile_end - run.tile_begin;
    }
    costs.push_back(steps);
  }
  return costs;
}

/// Of one kv head.
std::int64_t total_cost(const BackwardList& list, const Costs& costs, std::int32_t packed_heads) {
  const std::int64_t steps = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
  return steps * (heads_per_kv(list) / packed_heads) + std::ssize(costs) * list.shape.overhead;
}

/// Packed heads and their cost.
struct Packing {
  std::int32_t heads = 0;
  std::int64_t cost = 0;
};

/// The one of least cost that the choice allows, ties to fewer heads.
Packing choose_packing(const BackwardList& list, const BackwardChoice& choice) {
  Packing best;
  const std::int32_t unit = choice.heads_per_item > 0 ? choice.heads_per_item : heads_per_kv(list);
  for (std::int32_t heads = 1; heads <= 16 && unit % heads == 0; heads *= 2) {
    if (choice.packed_heads > 0 && heads != choice.packed_heads) continue;
    const std::int64_t cost = total_cost(list, tile_costs(list, list.shape.rows / heads), heads);
    if (best.heads == 0 || cost < best.cost) best = {heads, cost};
  }
  return best;
}

/// Tiles cut where slices begin, or on a plain grid, and the packing: what costs least.
void choose_tiles(BackwardList& list, std::span<const BandSlice> slices,
                  const BackwardChoice& choice) {
  std::vector<std::int32_t> cuts;
  for (const BandSlice& slice : slices) {
    const BandSlice band = shrink(slice);
    if (band.q0 < band.q1) cuts.push_back(band.k0);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  BackwardList grid = list;
  grid.tiles = cut_tiles(grid, {});
  fill_records(grid, slices);
  list.tiles = cut_tiles(list, cuts);
  fill_records(list, slices);
  const Packing grid_packing = choose_packing(grid, choice);
  Packing packing = choose_packing(list, choice);
  if (grid_packing.cost <= packing.cost) {
    packing = grid_packing;
    list = std::move(grid);
  }
  list.packed_heads = packing.heads;
  list.tile_tokens = list.shape.rows / packing.heads;
  list.head_groups = list.problem.heads_q / packing.heads;
}

/// Whether no k tile is much dearer than most.
bool is_even(const Costs& costs) {
  if (costs.empty()) return true;
  const std::int64_t total = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
  return 4 * costs.front() * std::ssize(costs) <= 5 * total;
}

/// Whether no k tile is seen by half of the rows.
bool is_narrow(const BackwardList& list, const Costs& costs) {
  return !costs.empty() && 2 * costs.front() < list.num_q_tiles();
}

/// Whether clearing the dQ sums costs more than waiting for a turn, as measured for windows and
/// short documents.
bool has_few_additions(const BackwardList& list, const Costs& costs) {
  constexpr std::int64_t kFew = 10;  // to a sum, on average
  const std::int64_t total = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
  return is_narrow(list, costs) && total < kFew * list.num_q_tiles();
}

/// How the items walk: windows come back to a q tile soon if a head is walked alone; elsewhere all
/// heads of a q tile side by side keep the CTAs that add to it in step.
void choose_walk(BackwardList& list, const Costs& costs, const BackwardChoice& choice) {
  list.is_ordered = choice.is_ordered || has_few_additions(list, costs);
  list.is_group_first =
      choice.is_group_first.value_or(list.is_ordered && is_narrow(list, costs) && is_even(costs));
}

/// As many columns as the cache holds, but enough items for every CTA.
std::int32_t section_columns(const BackwardList& list) {
  const BackwardProblem& problem = list.problem;
  const std::int64_t row_bytes = 2 * (problem.dim_qk + problem.dim_v) + 4 * problem.dim_qk;
  const std::int64_t heads = problem.heads_q / list.num_columns();
  const std::int64_t column_bytes = std::max(problem.rows_q, 1) * row_bytes * heads;
  const std::int64_t num_tiles = std::max<std::int64_t>(std::ssize(list.tiles), 1);
  const std::int64_t fitting = problem.cache_bytes / column_bytes;
  const std::int64_t filling = (problem.num_ctas - 1) / num_tiles + 1;
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(std::max(fitting, filling), list.num_columns()));
}

std::int64_t item_cost(const BackwardList& list, std::int64_t tile_cost) {
  return tile_cost * list.groups_per_item + list.shape.overhead +
         (list.num_pieces > 1 ? list.shape.piece_cost : 0);
}

/// All but the cheapest tiles that keep every CTA busy while one still walks the dearest.
std::int32_t section_tiles(const BackwardList& list, const Costs& costs) {
  auto num_tiles = static_cast<std::int32_t>(costs.size());
  if (num_tiles == 0) return 0;
  const std::int64_t wanted = list.problem.num_ctas * item_cost(list, costs.front());
  for (std::int64_t rest = 0; num_tiles > 0 && rest < wanted; --num_tiles) {
    rest += item_cost(list, costs[static_cast<std::size_t>(num_tiles) - 1]) * list.num_columns();
  }
  return num_tiles;
}

void set_pieces(BackwardList& list, const Costs& costs, const BackwardChoice& choice,
                std::int32_t num_pieces) {
  list.num_pieces = num_pieces;
  list.groups_per_item = heads_per_kv(list) / list.packed_heads / num_pieces;
  if (choice.columns_per_section > 0) {
    list.columns_per_section = std::min(choice.columns_per_section, list.num_columns());
  } else {
    // In turn, few CTAs should meet at one sum.
    const bool is_wide = choice.is_ordered && num_pieces == 1 && !list.is_group_first;
    list.columns_per_section = is_wide ? list.num_columns() : section_columns(list);
  }
  list.section_tiles = section_tiles(list, costs);
}

/// When the last CTA is done, items being handed out in order.
std::int64_t finish_time(const BackwardList& list, const Costs& costs) {
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> ctas;
  for (std::int32_t i = 0; i < list.problem.num_ctas; ++i) ctas.push(0);
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < list.num_items(); ++i) {
    const auto position = static_cast<std::size_t>(backward_item(list, i).tile_position);
    const std::int64_t done = ctas.top() + item_cost(list, costs[position]);
    ctas.pop();
    ctas.push(done);
    last = std::max(last, done);
  }
  return last;
}

/// As many pieces as finish first, ties to fewer.
void choose_pieces(BackwardList& list, const Costs& costs, const BackwardChoice& choice) {
  constexpr std::int64_t kPlenty = 24;  // items per CTA that balance by themselves
  const std::int32_t groups = heads_per_kv(list) / list.packed_heads;
  set_pieces(list, costs, choice, 1);
  if (list.num_items() >= kPlenty * list.problem.num_ctas) return;
  std::int64_t least = finish_time(list, costs);
  std::int32_t best = 1;
  for (std::int32_t pieces = 2; pieces <= groups; ++pieces) {
    if (groups % pieces != 0) continue;
    set_pieces(list, costs, choice, pieces);
    const std::int64_t time = finish_time(list, costs);
    if (time < least) {
      least = time;
      best = pieces;
    }
  }
  set_pieces(list, costs, choice, best);
}

/// Dearest first, ties by index; `costs` follow.
void sort_tiles(BackwardList& list, Costs& costs) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<KeyTileWork> tiles;
  Costs sorted;
  for (const std::size_t index : order) {
    tiles.push_back(list.tiles[index]);
    sorted.push_back(costs[index]);
  }
  list.tiles = std::move(tiles);
  costs = std::move(sorted);
}

/// How often each place has been seen, as a step function of the place.
class SeenPlaces {
 public:
  explicit SeenPlaces(std::int32_t num_places) { begin_of_[0] = begin_of_[num_places] = 0; }

  /// Sees [begin, end) once more, calling visit(first place, times seen before) for each step.
  template <typename Visit>
  void see(std::int32_t begin, std::int32_t end, Visit visit) {
    const auto last = split(end);
    for (auto run = split(begin); run != last; ++run) {
      visit(run->first, run->second);
      ++run->second;
    }
    join(begin);
    join(end);
  }

 private:
  using Runs = std::map<std::int32_t, std::int32_t>;

  Runs::iterator split(std::int32_t place) {
    const auto next = begin_of_.upper_bound(place);
    return begin_of_.try_emplace(next, place, std::prev(next)->second);
  }

  /// Removes the step at `place` where it has become none; the last one marks the end.
  void join(std::int32_t place) {
    const auto run = begin_of_.find(place);
    if (run == begin_of_.begin() || std::next(run) == begin_of_.end()) return;
    if (std::prev(run)->second == run->second) begin_of_.erase(run);
  }

  Runs begin_of_;
};

/// The island of each record, islands counted from the first row on; fills list.islands.
std::vector<std::int32_t> find_islands(BackwardList& list) {
  std::vector<std::size_t> order(list.records.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return list.records[a].band.q0 < list.records[b].band.q0;
  });
  std::vector<std::int32_t> island_of(order.size());
  list.islands.assign(static_cast<std::size_t>(list.num_q_tiles()), 0);
  std::int32_t island = -1;
  std::int32_t end = 0;        // of the island's rows
  std::int32_t next_tile = 0;  // first one in which the island has not been counted
  for (const std::size_t index : order) {
    const BandSlice& band = list.records[index].band;
    if (island < 0 || band.q0 >= end) {
      ++island;
      next_tile = band.q0 / list.tile_tokens;
    }
    end = std::max(end, band.q1);
    const std::int32_t tile_end = (end - 1) / list.tile_tokens + 1;
    for (; next_tile < tile_end; ++next_tile) ++list.islands[static_cast<std::size_t>(next_tile)];
    island_of[index] = island;
  }
  list.num_islands = island + 1;
  return island_of;
}

void fill_turns(BackwardList& list) {
  const int shift = std::countr_zero(static_cast<std::uint32_t>(list.tile_tokens));
  const std::vector<std::int32_t> island_of = find_islands(list);
  SeenPlaces seen(list.num_q_tiles() + list.num_islands);
  for (const KeyTileWork& work : list.tiles) {
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      KeyRecord& record = list.records[static_cast<std::size_t>(i)];
      const std::int32_t island = island_of[static_cast<std::size_t>(i)];
      const QueryRun run = query_run(record.band, work.key_begin, list.shape.keys, shift);
      record.turn_begin = static_cast<std::int32_t>(list.turns.size());
      seen.see(run.tile_begin + island, run.tile_end + island,
               [&](std::int32_t place, std::int32_t turn) {
                 list.turns.push_back({place - island, turn, island});
               });
      record.turn_end = static_cast<std::int32_t>(list.turns.size());
    }
  }
}

}  // namespace

BackwardItem backward_item(const BackwardList& list, std::int64_t index) {
  const std::int64_t in_sections = std::int64_t{list.section_tiles} * list.num_columns();
  if (index >= in_sections) {
    const std::int64_t inside = index - in_sections;
    return {.tile_position =
                list.section_tiles + static_cast<std::int32_t>(inside / list.num_columns()),
            .column = static_cast<std::int32_t>(inside % list.num_columns())};
  }
  const std::int64_t section_items = std::int64_t{list.columns_per_section} * list.section_tiles;
  const auto section = static_cast<std::int32_t>(index / section_items);
  const std::int32_t first_column = section * list.columns_per_section;
  const std::int32_t columns =
      std::min(list.columns_per_section, list.num_columns() - first_column);
  const std::int64_t inside = index - section * section_items;
  return {.tile_position = static_cast<std::int32_t>(inside / columns),
          .column = first_column + static_cast<std::int32_t>(inside % columns)};
}

BackwardList build_backward_list(const BackwardProblem& problem, std::span<const BandSlice> slices,
                                 const BackwardTileShape& shape, const BackwardChoice& choice) {
  check_problem(problem, slices);
  BackwardList list;
  list.problem = problem;
  list.shape = shape;
  check_choice(list, choice);
  choose_tiles(list, slices, choice);
  Costs costs = tile_costs(list, list.tile_tokens);
  sort_tiles(list, costs);
  choose_walk(list, costs, choice);
  if (choice.heads_per_item > 0) {
    set_pieces(list, costs, choice, heads_per_kv(list) / choice.heads_per_item);
  } else {
    choose_pieces(list, costs, choice);
  }
  if (problem.rows_q > 0) fill_turns(list);
  return list;
}

}  // namespace magi
