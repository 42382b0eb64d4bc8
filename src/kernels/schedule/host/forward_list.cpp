// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/forward_list.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <optional>

#include "base/check.hpp"
#include "kernels/schedule/host/tile_join.hpp"
#include "kernels/schedule/host/tile_run.hpp"

namespace magi {
namespace {

constexpr std::int32_t kBytesPerElement = 2;
constexpr std::int64_t kMaxRecords = std::numeric_limits<std::int32_t>::max();

void check_heads(const ForwardProblem& problem) {
  if (problem.heads_kv < 1) throw invalid("heads_kv", problem.heads_kv, "1 or more");
  if (problem.heads_q < 1 || problem.heads_q % problem.heads_kv != 0) {
    throw invalid("heads_q", problem.heads_q, "multiples of heads_kv");
  }
}

void check_problem(const ForwardProblem& problem, std::span<const BandSlice> slices) {
  check_heads(problem);
  validate(Mask{problem.rows_q, problem.rows_k, {slices.begin(), slices.end()}});
}

void check_packing(const ForwardProblem& problem, const TileShape& shape,
                   std::int32_t packed_heads) {
  const std::int32_t group = problem.heads_q / problem.heads_kv;
  const bool is_power = packed_heads > 0 && std::has_single_bit(std::uint32_t(packed_heads));
  if (!is_power || group % packed_heads != 0 || shape.rows % packed_heads != 0) {
    throw invalid("packed_heads", packed_heads,
                  "powers of two that divide heads_q / heads_kv and the rows of a tile");
  }
}

Range tile_rows(const ForwardList& list, std::int32_t tile) {
  const std::int64_t begin = std::int64_t{tile} * list.tile_tokens;
  const std::int64_t end = std::min<std::int64_t>(begin + list.tile_tokens, list.problem.rows_q);
  return {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)};
}

/// Calls visit(tile, record) for each q tile that sees a key of the slice.
template <typename Visit>
void for_each_record(const ForwardList& list, const BandSlice& slice, Visit visit) {
  const BandSlice band = shrink(slice);
  if (band.q0 >= band.q1) return;
  const std::int32_t last = (band.q1 - 1) / list.tile_tokens;
  for (std::int32_t tile = band.q0 / list.tile_tokens; tile <= last; ++tile) {
    const BandSlice part = shrink(cut_q(band, tile_rows(list, tile)));
    if (part.q0 < part.q1) visit(tile, BandRecord{.band = part});
  }
}

/// A shrunk slice has a record on every tile that it touches, since all of its rows see keys.
void check_num_records(const ForwardList& list, std::span<const BandSlice> slices) {
  std::int64_t num_records = 0;
  for (const BandSlice& slice : slices) {
    const BandSlice band = shrink(slice);
    if (band.q0 >= band.q1) continue;
    num_records += (band.q1 - 1) / list.tile_tokens - band.q0 / list.tile_tokens + 1;
  }
  if (num_records > kMaxRecords) {
    throw invalid("number of records of q tiles", num_records, "up to 2^31 - 1");
  }
}

/// Records grouped by tile, in order of the slices inside each, and the tiles in index order.
void fill_records(ForwardList& list, std::span<const BandSlice> slices) {
  std::vector<std::int32_t> begin(list.tiles.size() + 1, 0);
  for (const BandSlice& slice : slices) {
    for_each_record(list, slice, [&](std::int32_t tile, const BandRecord&) {
      ++begin[static_cast<std::size_t>(tile) + 1];
    });
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  list.records.resize(static_cast<std::size_t>(begin.back()));
  for (std::size_t tile = 0; tile < list.tiles.size(); ++tile) {
    list.tiles[tile] = {.tile = static_cast<std::int32_t>(tile),
                        .record_begin = begin[tile],
                        .record_end = begin[tile + 1]};
  }
  for (const BandSlice& slice : slices) {
    for_each_record(list, slice, [&](std::int32_t tile, const BandRecord& record) {
      auto& next = begin[static_cast<std::size_t>(tile)];
      list.records[static_cast<std::size_t>(next++)] = record;
    });
  }
}

std::int32_t tile_cost(const ForwardList& list, const TileWork& work) {
  const Range rows = tile_rows(list, work.tile);
  std::int64_t num_tiles = 0;
  bool is_short = false;
  for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
    const BandSlice& band = list.records[static_cast<std::size_t>(i)].band;
    const TileRun run = tile_run(band, rows.begin, rows.end, list.shape.keys);
    num_tiles += run.num_tiles;
    is_short = ends_short(band, run, list.shape.keys, list.shape.trimmed_keys);
  }
  const std::int64_t trimmed = num_tiles >= 2 && is_short ? 1 : 0;
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(2 * num_tiles - trimmed + list.shape.overhead, 1 << 30));
}

/// Joins the records of each tile, and prices again the tiles that then have fewer.
void join_records(ForwardList& list) {
  for (TileWork& work : list.tiles) {
    const auto begin = static_cast<std::size_t>(work.record_begin);
    const auto count = static_cast<std::size_t>(work.record_end - work.record_begin);
    if (count < 2 || count > kMostJoinedParts) continue;
    const std::span<BandRecord> records = std::span(list.records).subspan(begin, count);
    const std::int32_t num_left = join_parts(records, JoinAlong::Queries, list.problem.key_cut);
    work.record_end = work.record_begin + num_left;
    work.cost = tile_cost(list, work);
  }
}

void sort_tiles(ForwardList& list) {
  std::stable_sort(list.tiles.begin(), list.tiles.end(),
                   [](const TileWork& a, const TileWork& b) { return a.cost > b.cost; });
}

/// The list with a record for every slice and tile, tiles in index order.
ForwardList list_of_slices(const ForwardProblem& problem, std::span<const BandSlice> slices,
                           const TileShape& shape, std::int32_t packed_heads) {
  ForwardList list = forward_list_frame(problem, shape, packed_heads);
  check_num_records(list, slices);
  list.tiles.resize(static_cast<std::size_t>(list.num_tiles()));
  fill_records(list, slices);
  for (TileWork& work : list.tiles) work.cost = tile_cost(list, work);
  return list;
}

std::int32_t groups_per_section(const ForwardList& list) {
  const ForwardProblem& problem = list.problem;
  const std::int64_t head_bytes = std::int64_t{std::max(problem.rows_k, 1)} *
                                  (problem.dim_qk + problem.dim_v) * kBytesPerElement;
  const std::int64_t fitting =
      std::clamp<std::int64_t>(problem.cache_bytes / head_bytes, 1, problem.heads_kv);
  const auto kv_heads = static_cast<std::int32_t>(std::bit_floor(std::uint64_t(fitting)));
  return kv_heads * (list.head_groups / problem.heads_kv);
}

}  // namespace

std::int64_t ForwardList::total_cost() const {
  std::int64_t sum = 0;
  for (const TileWork& work : tiles) sum += work.cost;
  return sum * head_groups;
}

std::vector<std::int32_t> allowed_packed_heads(const ForwardProblem& problem,
                                               const TileShape& shape) {
  check_heads(problem);
  const std::int32_t group = problem.heads_q / problem.heads_kv;
  std::vector<std::int32_t> allowed;
  for (std::int32_t heads = 1; heads <= 16 && group % heads == 0 && shape.rows % heads == 0;
       heads *= 2) {
    allowed.push_back(heads);
  }
  return allowed;
}

ForwardList forward_list_frame(const ForwardProblem& problem, const TileShape& shape,
                               std::int32_t packed_heads) {
  check_heads(problem);
  check_packing(problem, shape, packed_heads);
  ForwardList list;
  list.problem = problem;
  list.shape = shape;
  list.packed_heads = packed_heads;
  list.tile_tokens = shape.rows / packed_heads;
  list.head_groups = problem.heads_q / packed_heads;
  list.groups_per_section = groups_per_section(list);
  list.num_works = list.num_tiles();
  return list;
}

ForwardList build_forward_list(const ForwardProblem& problem, std::span<const BandSlice> slices,
                               const TileShape& shape, std::int32_t packed_heads) {
  check_problem(problem, slices);
  ForwardList list = list_of_slices(problem, slices, shape, packed_heads);
  join_records(list);
  sort_tiles(list);
  return list;
}

ForwardList build_forward_list(const ForwardProblem& problem, std::span<const BandSlice> slices,
                               const TileShape& shape) {
  check_problem(problem, slices);
  std::optional<ForwardList> best;
  for (const std::int32_t heads : allowed_packed_heads(problem, shape)) {
    ForwardList list = list_of_slices(problem, slices, shape, heads);
    if (!best || list.total_cost() < best->total_cost()) best = std::move(list);
  }
  join_records(*best);
  sort_tiles(*best);
  return *std::move(best);
}

}  // namespace magi
