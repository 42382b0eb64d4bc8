// SPDX-License-Identifier: Apache-2.0
#include "bounds/priced_chunks.hpp"

#include <algorithm>
#include <numeric>

namespace magi::cli {
namespace {

/// Above every value of a set, and far enough from the ends of int32 that sums with it do not pass
/// them.
constexpr std::int32_t kNoSet = 1 << 29;
constexpr std::int64_t kMostValue = 1 << 27;
constexpr std::int64_t kMostAreaSteps = 4096;
constexpr std::int64_t kMostCells = std::int64_t{1} << 30;  // a second of work, 1 GiB of choices

// What a cell remembers: its best set with this chunk as the last one goes on from `open`, and
// whether that set became the best of `closed`, of `open`.
constexpr unsigned kFromOpen = 1;
constexpr unsigned kBestClosed = 2;
constexpr unsigned kBestOpen = 4;

void add_seen_keys(const ChunkTable& table, PricedChunks& chunks) {
  std::vector<Range> seen;
  std::int32_t end = 0;
  for (std::int32_t c = 0; c < table.num_chunks(); ++c) {
    const std::span<const Range> keys = table.keys_of(c);
    const bool is_rising = !keys.empty() && keys.back().end > end;
    const Range last =
        is_rising || (!keys.empty() && keys.back().end == end) ? keys.back() : Range{end, end};
    end = last.end;
    chunks.seen_begin.push_back(last.begin);
    chunks.seen_end.push_back(last.end);
    seen.push_back(last);
  }
  merge_ranges(seen);
  for (std::int32_t c = 0; c < table.num_chunks(); ++c) {
    const Range rows = table.rows(c);
    chunks.own_rows.push_back(static_cast<std::int32_t>(intersection_rows(seen, {&rows, 1})));
  }
}

}  // namespace

std::int32_t PricedChunks::max_price() const {
  const std::int64_t largest = own_rows.empty() ? 0 : *std::ranges::max_element(own_rows);
  if (max_chunks == 0 || num_keys > kMostValue / 2) return 0;
  const std::int64_t room = kMostValue / max_chunks - largest;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(room, 0, num_keys));
}

std::int32_t PricedChunks::max_area_steps() const {
  const std::int64_t cells = std::int64_t{num_chunks()} * max_chunks;
  if (cells == 0) return 0;
  return static_cast<std::int32_t>(std::min(kMostAreaSteps, kMostCells / cells));
}

PricedChunks make_priced_chunks(const ChunkTable& table, const Placement& placement) {
  PricedChunks chunks{.num_ranks = placement.num_ranks, .area = table.area};
  for (std::int32_t r = 0; r < placement.num_ranks; ++r) {
    const std::span<const std::int32_t> held = placement.chunks_of(r);
    std::int64_t area = 0;
    for (const std::int32_t c : held) area += table.area[static_cast<std::size_t>(c)];
    chunks.max_area = std::max(chunks.max_area, area);
    chunks.max_chunks = std::max(chunks.max_chunks, static_cast<std::int32_t>(held.size()));
  }
  const std::int64_t others = std::int64_t{placement.num_ranks - 1} * chunks.max_chunks;
  chunks.min_chunks =
      static_cast<std::int32_t>(std::max<std::int64_t>(0, table.num_chunks() - others));
  add_seen_keys(table, chunks);
  if (!chunks.seen_end.empty()) chunks.num_keys = chunks.seen_end.back();
  return chunks;
}

CheapestSet::CheapestSet(const PricedChunks& chunks, std::int32_t area_steps) : chunks_(chunks) {
  const std::int64_t step = std::max<std::int64_t>(1, chunks.max_area / area_steps);
  width_ = static_cast<std::size_t>(chunks.max_area / step) + 1;
  for (const std::int64_t area : chunks.area) {
    steps_.push_back(static_cast<std::int32_t>(
        std::min<std::int64_t>(area / step, static_cast<std::int64_t>(width_))));
  }
  closed_.resize(row(chunks.max_chunks + 1));
  open_.resize(closed_.size());
}

std::int64_t CheapestSet::num_cells() const {
  return static_cast<std::int64_t>(row(chunks_.max_chunks)) * chunks_.num_chunks();
}

/// Sets of `count` chunks get `chunk` as their last one.
template <bool kIsTraced>
void CheapestSet::add_chunk(std::int32_t chunk, std::int32_t count, std::int32_t price) {
  const auto c = static_cast<std::size_t>(chunk);
  const auto steps = static_cast<std::size_t>(steps_[c]);
  if (steps >= width_) return;
  const std::int32_t end = chunks_.seen_end[c];
  const std::int32_t base = -chunks_.own_rows[c] - price;
  const std::int32_t after_closed = base + end - chunks_.seen_begin[c];
  const std::int32_t after_open = base + end;
  const std::int32_t* closed = closed_.data() + row(count);
  const std::int32_t* open = open_.data() + row(count);
  std::int32_t* next_closed = closed_.data() + row(count + 1) + steps;
  std::int32_t* next_open = open_.data() + row(count + 1) + steps;
  std::uint8_t* choice = kIsTraced
                             ? choice_.data() + (c * static_cast<std::size_t>(chunks_.max_chunks) +
                                                 static_cast<std::size_t>(count)) *
                                                    width_
                             : nullptr;
  const std::size_t cells = width_ - steps;
  for (std::size_t a = 0; a < cells; ++a) {
    const std::int32_t from_closed = closed[a] + after_closed;
    const std::int32_t from_open = open[a] + after_open;
    const std::int32_t value = std::min(from_closed, from_open);
    const std::int32_t open_value = value - end;
    if constexpr (kIsTraced) {
      choice[a] = static_cast<std::uint8_t>((from_open < from_closed ? kFromOpen : 0) |
                                            (value < next_closed[a] ? kBestClosed : 0) |
                                            (open_value < next_open[a] ? kBestOpen : 0));
    }
    next_closed[a] = std::min(next_closed[a], value);
    next_open[a] = std::min(next_open[a], open_value);
  }
}

template <bool kIsTraced>
std::int64_t CheapestSet::fill(std::span<const std::int32_t> prices) {
  const auto first = static_cast<std::ptrdiff_t>(width_);
  std::fill(closed_.begin() + first, closed_.end(), kNoSet);
  std::fill(open_.begin() + first, open_.end(), kNoSet);
  std::fill(closed_.begin(), closed_.begin() + first, 0);
  std::fill(open_.begin(), open_.begin() + first, 0);
  for (std::int32_t c = 0; c < chunks_.num_chunks(); ++c) {
    // Larger sets first, so that none gets the chunk twice.
    for (std::int32_t count = std::min(c, chunks_.max_chunks - 1); count >= 0; --count) {
      add_chunk<kIsTraced>(c, count, prices[static_cast<std::size_t>(c)]);
    }
  }
  std::int32_t least = kNoSet;
  for (std::int32_t count = chunks_.min_chunks; count <= chunks_.max_chunks; ++count) {
    const std::int32_t value = closed_[row(count + 1) - 1];
    if (value < least) {
      least = value;
      best_count_ = count;
    }
  }
  return least;
}

void CheapestSet::trace(std::vector<std::int32_t>& set) const {
  set.clear();
  std::int32_t count = best_count_;
  std::size_t area = width_ - 1;
  unsigned wanted = kBestClosed;
  for (std::int32_t c = chunks_.num_chunks() - 1; c >= 0 && count > 0; --c) {
    const auto steps = static_cast<std::size_t>(steps_[static_cast<std::size_t>(c)]);
    if (steps > area || count > c + 1) continue;
    const std::size_t cell =
        (static_cast<std::size_t>(c) * static_cast<std::size_t>(chunks_.max_chunks) +
         static_cast<std::size_t>(count - 1)) *
            width_ +
        (area - steps);
    if ((choice_[cell] & wanted) == 0) continue;
    set.push_back(c);
    wanted = (choice_[cell] & kFromOpen) != 0 ? kBestOpen : kBestClosed;
    area -= steps;
    --count;
  }
}

std::int64_t CheapestSet::value(std::span<const std::int32_t> prices) {
  return fill<false>(prices);
}

std::int64_t CheapestSet::find(std::span<const std::int32_t> prices,
                               std::vector<std::int32_t>& set) {
  choice_.resize(static_cast<std::size_t>(num_cells()));
  const std::int64_t least = fill<true>(prices);
  trace(set);
  return least;
}

std::int64_t proven_rows(const PricedChunks& chunks, const PriceProof& proof) {
  if (proof.area_steps == 0) return 0;
  const std::int64_t all =
      std::accumulate(proof.prices.begin(), proof.prices.end(), std::int64_t{0});
  CheapestSet cheapest(chunks, proof.area_steps);
  return all + chunks.num_ranks * cheapest.value(proof.prices);
}

}  // namespace magi::cli
