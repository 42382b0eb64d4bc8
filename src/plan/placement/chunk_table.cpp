// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/chunk_table.hpp"

#include <algorithm>
#include <numeric>

#include "base/math.hpp"

namespace magi {
namespace {

struct Piece {
  std::int32_t chunk = 0;
  Range keys;
};

/// Pieces in order of slices; adds their areas to the chunks.
std::vector<Piece> cut_slices(const Mask& mask, ChunkTable& table) {
  std::vector<Piece> pieces;
  pieces.reserve(mask.slices.size() + table.area.size());
  for (const BandSlice& whole : mask.slices) {
    const BandSlice slice = shrink(whole);
    if (slice.q0 >= slice.q1) continue;
    const std::int32_t first = slice.q0 / table.chunk_size;
    const std::int32_t last = (slice.q1 - 1) / table.chunk_size;
    for (std::int32_t c = first; c <= last; ++c) {
      const BandSlice part = first == last ? slice : shrink(cut_q(slice, table.rows(c)));
      if (part.q0 >= part.q1) continue;
      table.area[static_cast<std::size_t>(c)] += area(part);
      pieces.push_back({c, {part.k0, part.k1}});
    }
  }
  return pieces;
}

/// Moves the pieces to their chunks (counting sort), then merges each chunk's list in place.
void fill_keys(const std::vector<Piece>& pieces, ChunkTable& table) {
  const std::size_t n = table.area.size();
  std::vector<std::int32_t> begin(n + 1, 0);
  for (const Piece& piece : pieces) ++begin[static_cast<std::size_t>(piece.chunk) + 1];
  for (std::size_t c = 0; c < n; ++c) begin[c + 1] += begin[c];
  std::vector<Range> sorted(pieces.size());
  std::vector<std::int32_t> next(begin.begin(), begin.end() - 1);
  for (const Piece& piece : pieces) {
    sorted[static_cast<std::size_t>(next[static_cast<std::size_t>(piece.chunk)]++)] = piece.keys;
  }
  table.key_begin.assign(n + 1, 0);
  table.keys.reserve(n);
  for (std::size_t c = 0; c < n; ++c) {
    const auto first = sorted.begin() + begin[c];
    const auto last = sorted.begin() + begin[c + 1];
    const auto by_begin = [](const Range& a, const Range& b) { return a.begin < b.begin; };
    if (!std::is_sorted(first, last, by_begin)) std::sort(first, last, by_begin);
    const std::size_t start = table.keys.size();
    for (auto range = first; range != last; ++range) {
      if (table.keys.size() > start && range->begin <= table.keys.back().end) {
        table.keys.back().end = std::max(table.keys.back().end, range->end);
      } else {
        table.keys.push_back(*range);
      }
    }
    table.key_begin[c + 1] = static_cast<std::int32_t>(table.keys.size());
  }
}

}  // namespace

Range ChunkTable::rows(std::int32_t chunk) const {
  const std::int64_t begin = std::int64_t{chunk} * chunk_size;
  const std::int64_t end = std::min<std::int64_t>(begin + chunk_size, num_rows);
  return {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)};
}

std::span<const Range> ChunkTable::keys_of(std::int32_t chunk) const {
  const auto c = static_cast<std::size_t>(chunk);
  const auto first = static_cast<std::size_t>(key_begin[c]);
  return std::span<const Range>(keys).subspan(first,
                                              static_cast<std::size_t>(key_begin[c + 1]) - first);
}

std::int64_t ChunkTable::total_area() const {
  return std::accumulate(area.begin(), area.end(), std::int64_t{0});
}

ChunkTable make_chunk_table(const Mask& mask, std::int32_t num_rows, std::int32_t chunk_size) {
  ChunkTable table;
  table.num_rows = num_rows;
  table.chunk_size = chunk_size;
  table.area.assign(static_cast<std::size_t>(ceil_div<std::int64_t>(num_rows, chunk_size)), 0);
  fill_keys(cut_slices(mask, table), table);
  return table;
}

void merge_ranges(std::vector<Range>& ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.empty(); });
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::size_t kept = 0;
  for (const Range& range : ranges) {
    if (kept > 0 && range.begin <= ranges[kept - 1].end) {
      ranges[kept - 1].end = std::max(ranges[kept - 1].end, range.end);
    } else {
      ranges[kept++] = range;
    }
  }
  ranges.resize(kept);
}

std::int64_t intersection_rows(std::span<const Range> a, std::span<const Range> b) {
  std::int64_t rows = 0;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const std::int32_t begin = std::max(a[i].begin, b[j].begin);
    const std::int32_t end = std::min(a[i].end, b[j].end);
    if (begin < end) rows += end - begin;
    if (a[i].end < b[j].end) {
      ++i;
    } else {
      ++j;
    }
  }
  return rows;
}

std::int64_t count_rows(std::span<const Range> ranges) {
  std::int64_t rows = 0;
  for (const Range& range : ranges) rows += range.size();
  return rows;
}

}  // namespace magi
