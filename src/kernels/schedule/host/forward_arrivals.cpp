// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/forward_arrivals.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/schedule/host/tile_run.hpp"

namespace magi {
namespace {

/// The time that a unit of cost, half a k tile, takes an H100 or H200 at head dim 128. [ns]
constexpr std::int64_t kNsPerCost = 900;

/// The keys of the record that are the work's own.
BandSlice own_part(const ForwardList& list, const TileWork& work, std::int32_t record) {
  BandSlice band = list.records[static_cast<std::size_t>(record)].band;
  if (record == work.record_begin) band.k1 = std::min(band.k1, work.k_end);
  if (record + 1 == work.record_end) band.k0 = std::max(band.k0, work.k_begin);
  return band;
}

/// Rows that are loaded for a record. A short tile is loaded at full width, with keys after it.
Range loaded_keys(const ForwardList& list, const TileWork& work, std::int32_t record) {
  const BandSlice band = own_part(list, work, record);
  const TileShape& shape = list.shape;
  const std::int32_t row_begin = work.tile * list.tile_tokens;
  const std::int32_t row_end =
      row_begin + std::min(list.tile_tokens, list.problem.rows_q - row_begin);
  const TileRun run = tile_run(band, row_begin, row_end, shape.keys);
  const bool is_first = record == work.record_begin;
  const bool is_last = record + 1 == work.record_end;
  const bool is_short = is_last && (run.num_tiles >= 2 || !is_first) &&
                        ends_short(band, run, shape.keys, shape.trimmed_keys);
  const std::int32_t unloaded = is_short ? shape.keys - shape.trimmed_keys : 0;
  const std::int32_t begin = run.k_end - run.num_tiles * shape.keys + unloaded;
  return {begin, std::max(run.k_end, begin + shape.keys)};
}

/// Head groups of a section of the works that wait: as many as fit the cache, and a divisor of
/// those that arrive together.
std::int32_t groups_of_in_flight_section(const ForwardList& list, const InFlightKeys& coming) {
  const std::int32_t groups_per_kv = list.head_groups / list.problem.heads_kv;
  const std::int32_t together = coming.heads_per_section(list.problem.heads_kv);
  std::int32_t heads = std::min(together, list.groups_per_section / groups_per_kv);
  while (together % heads != 0) --heads;
  return heads * groups_per_kv;
}

}  // namespace

std::uint32_t sources_of(const ForwardList& list, const TileWork& work,
                         const InFlightKeys& coming) {
  std::uint32_t sources = 0;
  for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
    sources |= sources_of(coming, loaded_keys(list, work, i));
  }
  return sources;
}

void order_by_arrival(ForwardList& list, const InFlightKeys& coming, std::int32_t num_ctas) {
  // Works that can begin early go first only until the others can: longest first balances best.
  std::int64_t open_cost = coming.expected_ns * num_ctas / kNsPerCost;
  std::vector<bool> goes_first(list.tiles.size());
  for (std::size_t i = 0; i < list.tiles.size(); ++i) {
    TileWork& work = list.tiles[i];
    work.sources = sources_of(list, work, coming);
    if (work.sources != 0) ++list.num_waiting_works;
    if ((work.sources & ~coming.early_sources) != 0) continue;
    const bool is_free = work.sources == 0 && coming.expected_ns == 0;
    if (!is_free && open_cost <= 0) continue;
    goes_first[i] = true;
    open_cost -= std::int64_t{work.cost} * list.head_groups;
  }
  const auto is_first = [&](const TileWork& work) {
    return goes_first[static_cast<std::size_t>(&work - list.tiles.data())];
  };
  std::vector<TileWork> ordered;
  std::ranges::copy_if(list.tiles, std::back_inserter(ordered), is_first);
  list.num_in_flight_works = static_cast<std::int32_t>(list.tiles.size() - ordered.size());
  std::ranges::copy_if(list.tiles, std::back_inserter(ordered), std::not_fn(is_first));
  list.tiles = std::move(ordered);
  list.in_flight_groups_per_section = groups_of_in_flight_section(list, coming);
}

}  // namespace magi
