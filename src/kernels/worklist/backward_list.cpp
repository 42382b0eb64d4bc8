// SPDX-License-Identifier: Apache-2.0
#include "kernels/worklist/backward_list.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <map>
#include <numeric>

#include "base/check.hpp"
#include "kernels/worklist/backward_order.hpp"
#include "kernels/worklist/query_run.hpp"

namespace magi {
namespace {

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
  if (choice.section_heads < 0) {
    throw invalid("section_heads", choice.section_heads, "0 or more");
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

QueryRun run_of(const BackwardList& list, const KeyTileWork& work, const KeyRecord& record) {
  const int shift = std::countr_zero(static_cast<std::uint32_t>(list.tile_tokens));
  return query_run(record.band, work.key_begin, list.shape.keys, shift);
}

BackwardTileCosts tile_costs(const BackwardList& list) {
  BackwardTileCosts costs;
  costs.reserve(list.tiles.size());
  for (const KeyTileWork& work : list.tiles) {
    std::int64_t steps = 0;
    for (const KeyRecord& record : records_of(list, work)) {
      const QueryRun run = run_of(list, work, record);
      steps += run.tile_end - run.tile_begin;
    }
    costs.push_back(steps);
  }
  return costs;
}

/// The island of each record, islands counted from the first row on.
std::vector<std::int32_t> find_islands(const BackwardList& list) {
  std::vector<std::size_t> order(list.records.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return list.records[a].band.q0 < list.records[b].band.q0;
  });
  std::vector<std::int32_t> island_of(order.size());
  std::int32_t island = -1;
  std::int32_t end = 0;  // of the island's rows
  for (const std::size_t index : order) {
    const BandSlice& band = list.records[index].band;
    if (island < 0 || band.q0 >= end) ++island;
    end = std::max(end, band.q1);
    island_of[index] = island;
  }
  return island_of;
}

/// Of each q tile; fills list.islands.
void count_islands(BackwardList& list, std::span<const std::int32_t> island_of) {
  std::vector<Range> rows;
  for (std::size_t i = 0; i < island_of.size(); ++i) {
    const auto island = static_cast<std::size_t>(island_of[i]);
    const BandSlice& band = list.records[i].band;
    if (island >= rows.size()) rows.resize(island + 1);
    Range& range = rows[island];
    if (range.empty()) range = {band.q0, band.q1};
    range = {std::min(range.begin, band.q0), std::max(range.end, band.q1)};
  }
  list.num_islands = static_cast<std::int32_t>(rows.size());
  list.islands.assign(static_cast<std::size_t>(list.num_q_tiles()), 0);
  for (const Range& range : rows) {
    for (std::int32_t tile = range.begin / list.tile_tokens;
         tile <= (range.end - 1) / list.tile_tokens; ++tile) {
      ++list.islands[static_cast<std::size_t>(tile)];
    }
  }
}

void set_packing(BackwardList& list, std::int32_t heads) {
  list.packed_heads = heads;
  list.tile_tokens = list.shape.rows / heads;
  list.head_groups = list.problem.heads_q / heads;
}

/// Packed heads and when the items are done.
struct Packing {
  std::int32_t heads = 0;
  std::int64_t time = 0;
};

/// The one that the choice allows and that is done first, ties to fewer heads.
Packing choose_packing(BackwardList& list, const BackwardChoice& choice) {
  Packing best;
  const std::vector<std::int32_t> island_of = find_islands(list);
  const std::int32_t unit = choice.heads_per_item > 0 ? choice.heads_per_item : heads_per_kv(list);
  for (std::int32_t heads = 1; heads <= 16 && unit % heads == 0; heads *= 2) {
    if (choice.packed_heads > 0 && heads != choice.packed_heads) continue;
    set_packing(list, heads);
    const std::int64_t time = modelled_time(list, tile_costs(list), island_of, choice);
    if (best.heads == 0 || time < best.time) best = {heads, time};
  }
  return best;
}

/// Tiles cut where slices begin, or on a plain grid, and the packing: what is done first.
void choose_tiles(BackwardList& list, std::span<const BandSlice> slices,
                  const BackwardChoice& choice) {
  std::vector<std::int32_t> cuts;
  for (const BandSlice& slice : slices) {
    const BandSlice band = shrink(slice);
    if (band.q0 < band.q1) cuts.push_back(band.k0);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  BackwardList cut = list;
  list.tiles = cut_tiles(list, {});
  cut.tiles = cut_tiles(cut, cuts);
  const bool has_cuts = cut.tiles != list.tiles;
  fill_records(list, slices);
  Packing packing = choose_packing(list, choice);
  if (has_cuts) {
    fill_records(cut, slices);
    const Packing cut_packing = choose_packing(cut, choice);
    if (cut_packing.time < packing.time) {
      packing = cut_packing;
      list = std::move(cut);
    }
  }
  set_packing(list, packing.heads);
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

/// Places where somebody has been, as runs that do not touch.
class TakenPlaces {
 public:
  /// The parts of [begin, end) where nobody has been, ascending; all of it is taken then.
  std::vector<Range> take(std::int32_t begin, std::int32_t end) {
    std::vector<Range> parts;
    std::int32_t at = begin;
    auto run = end_of_.upper_bound(begin);
    if (run != end_of_.begin() && std::prev(run)->second >= begin) --run;
    std::int32_t first = begin;
    while (run != end_of_.end() && run->first <= end) {
      if (at < run->first) parts.push_back({at, run->first});
      first = std::min(first, run->first);
      at = std::max(at, run->second);
      run = end_of_.erase(run);
    }
    if (at < end) parts.push_back({at, end});
    end_of_[first] = std::max(at, end);
    return parts;
  }

 private:
  std::map<std::int32_t, std::int32_t> end_of_;
};

/// Of each record, the q tiles where no record of its island comes after it, ascending.
std::vector<std::vector<Range>> find_last_tiles(const BackwardList& list,
                                                std::span<const std::int32_t> island_of) {
  std::vector<std::vector<Range>> last(list.records.size());
  TakenPlaces taken;
  for (auto work = list.tiles.rbegin(); work != list.tiles.rend(); ++work) {
    for (std::int32_t i = work->record_end - 1; i >= work->record_begin; --i) {
      const auto record = static_cast<std::size_t>(i);
      const std::int32_t island = island_of[record];
      const QueryRun run = run_of(list, *work, list.records[record]);
      last[record] = taken.take(run.tile_begin + island, run.tile_end + island);
      for (Range& range : last[record]) range = {range.begin - island, range.end - island};
    }
  }
  return last;
}

/// Fills list.left_tiles and takes them out of `last`: those where not one island ends, and those
/// of k tiles that end many, so that they would do little else than make rows of sums.
void leave_tiles(BackwardList& list, std::vector<std::vector<Range>>& last) {
  constexpr std::int64_t kLeastSteps = 3;  // of a k tile for each sum that it ends
  std::vector<char> is_left(list.islands.size());
  for (std::size_t tile = 0; tile < is_left.size(); ++tile) is_left[tile] = list.islands[tile] != 1;
  const auto for_each_last = [&](const KeyTileWork& work, auto visit) {
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      for (const Range& range : last[static_cast<std::size_t>(i)]) {
        for (std::int32_t tile = range.begin; tile < range.end; ++tile) {
          visit(i, static_cast<std::size_t>(tile));
        }
      }
    }
  };
  const BackwardTileCosts costs = tile_costs(list);
  for (std::size_t tile = 0; tile < costs.size(); ++tile) {
    const KeyTileWork& work = list.tiles[tile];
    std::int64_t sums = 0;
    for_each_last(work, [&](std::int32_t, std::size_t) { ++sums; });
    if (costs[tile] >= kLeastSteps * sums) continue;
    for_each_last(work, [&](std::int32_t, std::size_t q_tile) { is_left[q_tile] = 1; });
  }
  std::vector<std::vector<Range>> kept(last.size());
  for (const KeyTileWork& work : list.tiles) {
    for_each_last(work, [&](std::int32_t i, std::size_t tile) {
      const auto place = static_cast<std::int32_t>(tile);
      std::vector<Range>& ranges = kept[static_cast<std::size_t>(i)];
      if (is_left[tile] != 0) return;
      if (ranges.empty() || ranges.back().end != place) ranges.push_back({place, place});
      ++ranges.back().end;
    });
  }
  last = std::move(kept);
  for (std::size_t tile = 0; tile < is_left.size(); ++tile) {
    if (is_left[tile] != 0) list.left_tiles.push_back(static_cast<std::int32_t>(tile));
  }
}

/// Cuts the runs from number `first` on where `last` begins and ends.
void mark_last(std::vector<TurnRun>& turns, std::size_t first, std::int32_t tile_end,
               std::span<const Range> last) {
  const std::vector<TurnRun> runs(turns.begin() + static_cast<std::ptrdiff_t>(first), turns.end());
  turns.resize(first);
  auto range = last.begin();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    TurnRun run = runs[i];
    const std::int32_t end = i + 1 < runs.size() ? runs[i + 1].q_tile : tile_end;
    while (run.q_tile < end) {
      while (range != last.end() && range->end <= run.q_tile) ++range;
      run.is_last = range != last.end() && range->begin <= run.q_tile ? 1 : 0;
      turns.push_back(run);
      if (range == last.end()) break;
      run.q_tile = run.is_last != 0 ? range->end : range->begin;
    }
  }
}

void fill_turns(BackwardList& list, std::span<const std::int32_t> island_of) {
  SeenPlaces seen(list.num_q_tiles() + list.num_islands);
  std::vector<std::vector<Range>> last;
  if (list.is_finishing) {
    last = find_last_tiles(list, island_of);
    leave_tiles(list, last);
    list.is_finishing = std::ssize(list.left_tiles) < list.num_q_tiles();
    if (!list.is_finishing) list.left_tiles.clear();
  }
  for (const KeyTileWork& work : list.tiles) {
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      KeyRecord& record = list.records[static_cast<std::size_t>(i)];
      const std::int32_t island = island_of[static_cast<std::size_t>(i)];
      const QueryRun run = run_of(list, work, record);
      record.turn_begin = static_cast<std::int32_t>(list.turns.size());
      seen.see(run.tile_begin + island, run.tile_end + island,
               [&](std::int32_t place, std::int32_t turn) {
                 list.turns.push_back({place - island, turn, island});
               });
      if (list.is_finishing) {
        mark_last(list.turns, static_cast<std::size_t>(record.turn_begin), run.tile_end,
                  last[static_cast<std::size_t>(i)]);
      }
      record.turn_end = static_cast<std::int32_t>(list.turns.size());
    }
  }
}

}  // namespace

std::int64_t BackwardList::num_slots() const {
  std::int64_t slots = 0;
  for (const TileSpan& span : spans) {
    slots += std::int64_t{span.block_tiles} * span.slot_heads;
  }
  return slots;
}

BackwardItem backward_item(const BackwardList& list, std::int64_t index) {
  return backward_item(list.spans.data(), list.problem.heads_kv, static_cast<std::uint32_t>(index));
}

BackwardList build_backward_list(const BackwardProblem& problem, std::span<const BandSlice> slices,
                                 const BackwardTileShape& shape, const BackwardChoice& choice) {
  check_problem(problem, slices);
  BackwardList list;
  list.problem = problem;
  list.shape = shape;
  check_choice(list, choice);
  choose_tiles(list, slices, choice);
  const std::vector<std::int32_t> island_of = find_islands(list);
  order_tiles(list, tile_costs(list), island_of, choice);
  count_islands(list, island_of);
  fill_turns(list, island_of);
  return list;
}

}  // namespace magi
