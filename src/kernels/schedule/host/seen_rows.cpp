// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/seen_rows.hpp"

#include <algorithm>
#include <cstddef>

namespace magi {
namespace {

void set_bits(std::vector<std::uint32_t>& words, Range rows) {
  for (std::int32_t row = rows.begin; row < rows.end;) {
    const std::int32_t first = row % kSeenBits;
    const std::int32_t count = std::min(kSeenBits - first, rows.end - row);
    words[static_cast<std::size_t>(row / kSeenBits)] |= (~0u >> (kSeenBits - count)) << first;
    row += count;
  }
}

/// The bits of the rows in `ranges`, none if these are all.
std::vector<std::uint32_t> bits_of(std::vector<Range> ranges, std::int32_t rows) {
  std::ranges::sort(ranges, {}, &Range::begin);
  std::int32_t end = 0;  // of the rows before which there is no gap
  for (const Range& range : ranges) {
    if (range.begin > end) break;
    end = std::max(end, range.end);
  }
  if (end >= rows) return {};
  std::vector<std::uint32_t> words(static_cast<std::size_t>(num_seen_words(rows)), 0);
  end = 0;
  for (const Range& range : ranges) {
    set_bits(words, {std::max(range.begin, end), range.end});
    end = std::max(end, range.end);
  }
  return words;
}

}  // namespace

SeenRows find_seen_rows(std::int32_t rows_q, std::int32_t rows_k,
                        std::span<const BandSlice> slices) {
  std::vector<Range> queries;
  std::vector<Range> keys;
  for (const BandSlice& slice : slices) {
    const BandSlice band = shrink(slice);
    if (band.q0 >= band.q1) continue;
    queries.push_back({band.q0, band.q1});
    keys.push_back({band.k0, band.k1});
  }
  return {bits_of(std::move(queries), rows_q), bits_of(std::move(keys), rows_k)};
}

}  // namespace magi
