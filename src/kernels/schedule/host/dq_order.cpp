// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/dq_order.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <map>
#include <numeric>

#include "kernels/schedule/host/query_run.hpp"

namespace magi {
namespace {

QueryRun run_of(const BackwardList& list, const KeyTile& tile, const KeyRecord& record) {
  const int shift = std::countr_zero(static_cast<std::uint32_t>(list.tile_tokens));
  return query_run(record.band, tile.key_begin, list.shape.keys, shift);
}

/// The value of each semaphore, as a step function of the semaphore's
/// number.
class SemaphoreValues {
 public:
  explicit SemaphoreValues(std::int32_t num_semaphores) {
    value_from_[0] = value_from_[num_semaphores] = 0;
  }

  /// Counts [begin, end) up, calling visit(first semaphore, value before) for each run of
  /// semaphores of one value.
  template <typename Visit>
  void count_up(std::int32_t begin, std::int32_t end, Visit visit) {
    const auto last = cut(end);
    for (auto run = cut(begin); run != last; ++run) {
      visit(run->first, run->second);
      ++run->second;
    }
    join(begin);
    join(end);
  }

 private:
  using Runs = std::map<std::int32_t, std::int32_t>;

  Runs::iterator cut(std::int32_t semaphore) {
    const auto next = value_from_.upper_bound(semaphore);
    return value_from_.try_emplace(next, semaphore, std::prev(next)->second);
  }

  /// Removes the step at `semaphore` if values no longer differ there; the last marks the end.
  void join(std::int32_t semaphore) {
    const auto run = value_from_.find(semaphore);
    if (run == value_from_.begin() || std::next(run) == value_from_.end()) return;
    if (std::prev(run)->second == run->second) value_from_.erase(run);
  }

  Runs value_from_;
};

/// Semaphores that records have used, as runs that do not touch.
class UsedSemaphores {
 public:
  /// Uses [begin, end) and returns the parts that were unused, ascending.
  std::vector<Range> use(std::int32_t begin, std::int32_t end) {
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

/// Runs of q tiles, for each record of a list.
using RecordTiles = std::vector<std::vector<Range>>;

/// The q tiles of each record to which no later record of its component adds, ascending.
RecordTiles find_last_tiles(const BackwardList& list, std::span<const std::int32_t> component_of) {
  RecordTiles last(list.records.size());
  UsedSemaphores used;
  for (auto tile = list.tiles.rbegin(); tile != list.tiles.rend(); ++tile) {
    for (std::int32_t i = tile->record_end - 1; i >= tile->record_begin; --i) {
      const auto record = static_cast<std::size_t>(i);
      const std::int32_t component = component_of[record];
      const QueryRun run = run_of(list, *tile, list.records[record]);
      last[record] = used.use(run.tile_begin + component, run.tile_end + component);
      for (Range& range : last[record]) {
        range = {range.begin - component, range.end - component};
      }
    }
  }
  return last;
}

/// Counts the other records that share sums with each record, if all are of one component.
std::vector<std::int64_t> count_others(const BackwardList& list) {
  std::vector<QueryRun> runs(list.records.size());
  std::vector<std::int32_t> begins;
  std::vector<std::int32_t> ends;
  for (const KeyTile& tile : list.tiles) {
    for (std::int32_t i = tile.record_begin; i < tile.record_end; ++i) {
      const auto record = static_cast<std::size_t>(i);
      runs[record] = run_of(list, tile, list.records[record]);
      begins.push_back(runs[record].tile_begin);
      ends.push_back(runs[record].tile_end);
    }
  }
  std::ranges::sort(begins);
  std::ranges::sort(ends);
  std::vector<std::int64_t> others;
  for (const QueryRun& run : runs) {
    const auto begun = std::ranges::lower_bound(begins, run.tile_end) - begins.begin();
    const auto ended = std::ranges::upper_bound(ends, run.tile_begin) - ends.begin();
    others.push_back(begun - ended - 1);
  }
  return others;
}

/// Marks the q tiles whose sums the main kernel does not convert: those that have not exactly one
/// component, and those that end in records that convert none.
std::vector<char> find_left_tiles(const BackwardList& list, const RecordTiles& last,
                                  const Conversions& conversions) {
  const std::vector<std::int64_t> others = count_others(list);
  std::vector<char> is_left;
  for (const std::int32_t components : list.tile_components) is_left.push_back(components != 1);
  for (const KeyTile& tile : list.tiles) {
    for (std::int32_t i = tile.record_begin; i < tile.record_end; ++i) {
      const auto record = static_cast<std::size_t>(i);
      const QueryRun run = run_of(list, tile, list.records[record]);
      std::int64_t count = 0;
      for (const Range& range : last[record]) count += range.size();
      const bool has_steps = run.tile_end - run.tile_begin >= conversions.distance * count;
      if (has_steps && others[record] <= conversions.most_others) continue;
      for (const Range& range : last[record]) {
        std::fill(is_left.begin() + range.begin, is_left.begin() + range.end, char{1});
      }
    }
  }
  return is_left;
}

/// The parts of the runs without left tiles.
std::vector<Range> without_left(const std::vector<Range>& ranges,
                                const std::vector<char>& is_left) {
  std::vector<Range> kept;
  for (const Range& range : ranges) {
    for (std::int32_t tile = range.begin; tile < range.end; ++tile) {
      if (is_left[static_cast<std::size_t>(tile)] != 0) continue;
      if (kept.empty() || kept.back().end != tile) kept.push_back({tile, tile});
      ++kept.back().end;
    }
  }
  return kept;
}

/// Decides which sums the main kernel converts: fills is_converting and left_tiles, and returns for
/// each record the q tiles whose sums it completes and converts.
RecordTiles choose_conversions(BackwardList& list, std::span<const std::int32_t> component_of,
                               const Conversions& conversions) {
  RecordTiles last = find_last_tiles(list, component_of);
  const std::vector<char> is_left = find_left_tiles(list, last, conversions);
  for (std::vector<Range>& ranges : last) ranges = without_left(ranges, is_left);
  const auto num_left = std::count(is_left.begin(), is_left.end(), char{1});
  list.is_converting = num_left < std::ssize(is_left);
  for (std::int32_t tile = 0; list.is_converting && tile < list.num_q_tiles(); ++tile) {
    if (is_left[static_cast<std::size_t>(tile)] != 0) list.left_tiles.push_back(tile);
  }
  return last;
}

/// Appends a run to `runs`, which ends at q tile `tile_end`, cut where `last` begins and ends.
void append_run(std::vector<SemaphoreRun>& runs, SemaphoreRun run, std::int32_t tile_end,
                std::span<const Range> last) {
  for (const Range& range : last) {
    if (range.end <= run.q_tile || range.begin >= tile_end) continue;
    if (run.q_tile < range.begin) {
      runs.push_back(run);
      run.q_tile = range.begin;
    }
    run.is_last = 1;
    runs.push_back(run);
    run.is_last = 0;
    run.q_tile = range.end;
  }
  if (run.q_tile < tile_end) runs.push_back(run);
}

/// Fills num_components, tile_components and where tile_semaphores begin.
void count_components(BackwardList& list, std::span<const std::int32_t> component_of) {
  std::vector<Range> rows;
  for (std::size_t i = 0; i < component_of.size(); ++i) {
    const auto component = static_cast<std::size_t>(component_of[i]);
    const BandSlice& band = list.records[i].band;
    if (component >= rows.size()) rows.resize(component + 1);
    Range& range = rows[component];
    if (range.empty()) range = {band.q0, band.q1};
    range = {std::min(range.begin, band.q0), std::max(range.end, band.q1)};
  }
  list.num_components = static_cast<std::int32_t>(rows.size());
  const auto num_tiles = static_cast<std::size_t>(list.num_q_tiles());
  list.tile_components.assign(num_tiles, 0);
  list.tile_semaphores.assign(num_tiles, {});
  for (std::size_t component = 0; component < rows.size(); ++component) {
    const Range& range = rows[component];
    for (std::int32_t tile = range.begin / list.tile_tokens;
         tile <= (range.end - 1) / list.tile_tokens; ++tile) {
      const auto at = static_cast<std::size_t>(tile);
      if (list.tile_components[at]++ > 0) continue;
      list.tile_semaphores[at].begin = tile + static_cast<std::int32_t>(component);
    }
  }
}

/// Fills the number of records that add to the sums of each q tile.
void count_additions(BackwardList& list) {
  std::vector<std::int32_t> changes(static_cast<std::size_t>(list.num_q_tiles()) + 1, 0);
  for (const KeyTile& tile : list.tiles) {
    for (std::int32_t i = tile.record_begin; i < tile.record_end; ++i) {
      const QueryRun run = run_of(list, tile, list.records[static_cast<std::size_t>(i)]);
      ++changes[static_cast<std::size_t>(run.tile_begin)];
      --changes[static_cast<std::size_t>(run.tile_end)];
    }
  }
  std::int32_t count = 0;
  for (std::size_t tile = 0; tile < list.tile_semaphores.size(); ++tile) {
    count += changes[tile];
    list.tile_semaphores[tile].num_additions = count;
  }
}

}  // namespace

std::vector<std::int32_t> find_components(std::span<const KeyRecord> records) {
  std::vector<std::size_t> order(records.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return records[a].band.q0 < records[b].band.q0; });
  std::vector<std::int32_t> component_of(order.size());
  std::int32_t component = -1;
  std::int32_t row_end = 0;  // of the component
  for (const std::size_t index : order) {
    const BandSlice& band = records[index].band;
    if (component < 0 || band.q0 >= row_end) ++component;
    row_end = std::max(row_end, band.q1);
    component_of[index] = component;
  }
  return component_of;
}

void order_dq(BackwardList& list, std::span<const std::int32_t> component_of,
              const std::optional<Conversions>& conversions) {
  count_components(list, component_of);
  count_additions(list);
  RecordTiles last;
  if (conversions) last = choose_conversions(list, component_of, *conversions);
  SemaphoreValues values(list.num_semaphores());
  std::vector<SemaphoreRun>& runs = list.semaphore_runs;
  std::vector<SemaphoreRun> uncut;
  for (const KeyTile& tile : list.tiles) {
    for (std::int32_t i = tile.record_begin; i < tile.record_end; ++i) {
      KeyRecord& record = list.records[static_cast<std::size_t>(i)];
      const std::int32_t component = component_of[static_cast<std::size_t>(i)];
      const QueryRun run = run_of(list, tile, record);
      uncut.clear();
      values.count_up(run.tile_begin + component, run.tile_end + component,
                      [&](std::int32_t semaphore, std::int32_t value) {
                        uncut.push_back({semaphore - component, value, component});
                      });
      std::span<const Range> converted;
      if (conversions) converted = last[static_cast<std::size_t>(i)];
      record.run_begin = static_cast<std::int32_t>(runs.size());
      for (std::size_t j = 0; j < uncut.size(); ++j) {
        const std::int32_t end = j + 1 < uncut.size() ? uncut[j + 1].q_tile : run.tile_end;
        append_run(runs, uncut[j], end, converted);
      }
      record.run_end = static_cast<std::int32_t>(runs.size());
    }
  }
}

}  // namespace magi
