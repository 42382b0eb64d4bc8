// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/monotone_keys.hpp"

namespace magi {

std::optional<MonotoneKeys> MonotoneKeys::from(const ChunkTable& table) {
  MonotoneKeys keys;
  const std::int32_t n = table.num_chunks();
  keys.lo_.reserve(table.area.size());
  keys.hi_.reserve(table.area.size());
  Range last{0, 0};
  bool previous_open = false;  // rows of the chunk before that it does not see itself
  std::int32_t previous_end = 0;
  for (std::int32_t c = 0; c < n; ++c) {
    const std::span<const Range> seen = table.keys_of(c);
    if (seen.size() > 1) return std::nullopt;
    // An empty chunk repeats the end before it; it fits only if nothing later reaches back.
    const Range range = seen.empty() ? Range{last.end, last.end} : seen.front();
    if (range.begin < last.begin || range.end < last.end) return std::nullopt;
    const Range rows = table.rows(c);
    const bool seen_before = rows.begin < range.begin && last.end > rows.begin;
    const bool seen_after = previous_open && !seen.empty() && range.begin < previous_end;
    if (seen_before || seen_after) return std::nullopt;
    previous_open = range.end < rows.end;
    previous_end = rows.end;
    keys.own_rows_ +=
        std::max(0, std::min(range.end, rows.end) - std::max(range.begin, rows.begin));
    keys.lo_.push_back(range.begin);
    keys.hi_.push_back(range.end);
    last = range;
  }
  return keys;
}

bool MonotoneKeys::is_one_causal_document(const ChunkTable& table) const {
  for (std::size_t c = 0; c < lo_.size(); ++c) {
    const Range rows = table.rows(static_cast<std::int32_t>(c));
    const std::int64_t whole =
        std::int64_t{rows.begin} * rows.size() + std::int64_t{rows.size()} * (rows.size() + 1) / 2;
    const bool is_last = c + 1 == lo_.size();
    if (lo_[c] != 0 || table.area[c] > whole || (!is_last && table.area[c] != whole)) return false;
  }
  return true;
}

std::int32_t MonotoneKeys::cost_of_adding(std::int32_t chunk,
                                          std::span<const std::int32_t> chunks) const {
  std::size_t before = 0;
  for (const std::int32_t held : chunks) before += held < chunk ? 1 : 0;
  const auto c = static_cast<std::size_t>(chunk);
  const std::int32_t hi_before = before > 0 ? hi_[static_cast<std::size_t>(chunks[before - 1])] : 0;
  if (before == chunks.size()) return share(hi_before, lo_[c], hi_[c], 0, 0);
  const auto next = static_cast<std::size_t>(chunks[before]);
  return share(hi_before, lo_[c], hi_[c], lo_[next], hi_[next]);
}

std::int64_t MonotoneKeys::remote_rows(std::span<const std::int32_t> rank_of,
                                       std::int32_t num_ranks) const {
  std::vector<std::int32_t> reach(static_cast<std::size_t>(num_ranks), 0);
  std::int64_t rows = -own_rows_;
  for (std::size_t c = 0; c < rank_of.size(); ++c) {
    std::int32_t& hi = reach[static_cast<std::size_t>(rank_of[c])];
    rows += std::max(0, hi_[c] - std::max(lo_[c], hi));
    hi = hi_[c];
  }
  return rows;
}

void MonotoneKeys::Pair::copy(const MonotoneKeys& keys, std::span<const std::int32_t> chunks,
                              Side& side) {
  const std::size_t n = chunks.size();
  if (side.lo.size() < n + 2) {
    side.lo.resize(n + 2, 0);
    side.hi.resize(n + 2, 0);
    side.rank.resize(n, 0);
  }
  for (std::size_t i = 0; i < n; ++i) {
    side.lo[i + 1] = keys.lo_[static_cast<std::size_t>(chunks[i])];
    side.hi[i + 1] = keys.hi_[static_cast<std::size_t>(chunks[i])];
  }
  side.lo[n + 1] = 0;
  side.hi[n + 1] = 0;
}

void MonotoneKeys::Pair::count_before(std::span<const std::int32_t> of,
                                      std::span<const std::int32_t> in, Side& side) {
  // Counting beats merging: no branch depends on the data, and the inner loop is vector code.
  std::int32_t* const rank = side.rank.data();
  const std::int32_t* const chunk = of.data();
  const std::size_t n = of.size();
  std::fill_n(rank, n, 0);
  for (const std::int32_t other : in) {
    for (std::size_t i = 0; i < n; ++i) rank[i] += chunk[i] > other ? 1 : 0;
  }
}

void MonotoneKeys::Pair::fill_gains(const Side& from, const Side& to,
                                    std::vector<std::int32_t>& gain) {
  for (std::size_t a = 0; a < gain.size(); ++a) {
    const std::int32_t lo = from.lo[a + 1];
    const std::int32_t hi = from.hi[a + 1];
    const auto p = static_cast<std::size_t>(from.rank[a]);
    gain[a] = share(to.hi[p], lo, hi, to.lo[p + 1], to.hi[p + 1]) -
              share(from.hi[a], lo, hi, from.lo[a + 2], from.hi[a + 2]);
  }
}

void MonotoneKeys::Pair::load(const MonotoneKeys& keys, std::span<const std::int32_t> x,
                              std::span<const std::int32_t> y) {
  num_x_ = x.size();
  num_y_ = y.size();
  copy(keys, x, x_);
  copy(keys, y, y_);
  count_before(x, y, x_);
  count_before(y, x, y_);
  gain_x_.resize(num_x_);
  gain_y_.resize(num_y_);
  fill_gains(x_, y_, gain_x_);
  fill_gains(y_, x_, gain_y_);
}

/// Change when chunk a of `from` takes the place of chunk b in `to`, on the side of `to` without
/// counting what b gives back, and on the side of `from` what a gives back.
std::int32_t MonotoneKeys::Pair::exchange(const Side& from, const Side& to, std::size_t a,
                                          std::size_t b) {
  const auto p = static_cast<std::size_t>(from.rank[a]);
  const std::size_t before = p == b + 1 ? p - 1 : p;
  const std::size_t next = p == b ? p + 2 : p + 1;
  const std::int32_t lo = from.lo[a + 1];
  const std::int32_t hi = from.hi[a + 1];
  return share(to.hi[before], lo, hi, to.lo[next], to.hi[next]) -
         share(from.hi[a], lo, hi, from.lo[a + 2], from.hi[a + 2]);
}

std::int64_t MonotoneKeys::Pair::swap(std::size_t a, std::size_t b) const {
  return std::int64_t{exchange(x_, y_, a, b)} + exchange(y_, x_, b, a);
}

}  // namespace magi
