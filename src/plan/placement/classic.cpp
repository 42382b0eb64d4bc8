// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/classic.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/math.hpp"
#include "base/random.hpp"
#include "plan/placement/lightest_rank.hpp"

namespace magi {
namespace {

/// The ranks of positions 0..n-1 when runs of positions go to rank after rank.
Assignment runs_of(std::int32_t n, std::int32_t num_ranks) {
  Assignment rank_of(static_cast<std::size_t>(n));
  const std::int32_t length = n / num_ranks;
  const std::int32_t longer = n % num_ranks;
  auto position = rank_of.begin();
  for (std::int32_t r = 0; r < num_ranks; ++r) {
    position = std::fill_n(position, length + (r < longer ? 1 : 0), r);
  }
  return rank_of;
}

}  // namespace

PlacementLimits placement_limits(std::int32_t num_chunks, std::int32_t num_ranks,
                                 double tolerance) {
  const std::int32_t even = ceil_div(num_chunks, num_ranks);
  const double allowed = std::floor((1.0 + tolerance) * num_chunks / num_ranks);
  if (allowed >= num_chunks) return {num_ranks, num_chunks};
  return {num_ranks, std::max(even, static_cast<std::int32_t>(allowed))};
}

std::vector<std::int32_t> chunks_by_area(const ChunkTable& table) {
  std::vector<std::int32_t> order(table.area.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const std::int64_t area_a = table.area[static_cast<std::size_t>(a)];
    const std::int64_t area_b = table.area[static_cast<std::size_t>(b)];
    return area_a != area_b ? area_a > area_b : a > b;
  });
  return order;
}

Assignment place_sequential(const ChunkTable& table, const PlacementLimits& limits) {
  return runs_of(table.num_chunks(), limits.num_ranks);
}

Assignment place_zigzag(const ChunkTable& table, const PlacementLimits& limits) {
  const std::int32_t n = table.num_chunks();
  const std::int32_t ranks = limits.num_ranks;
  const std::int32_t run = n / ranks / 2;
  Assignment rank_of(static_cast<std::size_t>(n));
  for (std::int32_t c = 0; c < ranks * run; ++c) {
    rank_of[static_cast<std::size_t>(c)] = c / run;
    rank_of[static_cast<std::size_t>(n - 1 - c)] = c / run;
  }
  // Fewer than 2 * ranks are left: there and back again.
  for (std::int32_t c = ranks * run; c < n - ranks * run; ++c) {
    const std::int32_t step = c - ranks * run;
    rank_of[static_cast<std::size_t>(c)] = step < ranks ? ranks - 1 - step : step - ranks;
  }
  return rank_of;
}

Assignment place_min_heap(const ChunkTable& table, const PlacementLimits& limits) {
  return place_min_heap(table, limits, chunks_by_area(table));
}

Assignment place_min_heap(const ChunkTable& table, const PlacementLimits& limits,
                          std::span<const std::int32_t> order) {
  Assignment rank_of(table.area.size());
  const auto num_ranks = static_cast<std::size_t>(limits.num_ranks);
  std::vector<std::int64_t> load(num_ranks);
  std::vector<std::int32_t> count(num_ranks);
  LightestRank lightest(num_ranks);
  for (const std::int32_t chunk : order) {
    const auto c = static_cast<std::size_t>(chunk);
    const std::size_t rank = lightest.rank();
    rank_of[c] = static_cast<std::int32_t>(rank);
    load[rank] += table.area[c];
    if (++count[rank] < limits.max_chunks) {
      lightest.set_load(rank, load[rank]);
    } else {
      lightest.set_full(rank);
    }
  }
  return rank_of;
}

Assignment place_random(const ChunkTable& table, const PlacementLimits& limits,
                        std::uint64_t seed) {
  Assignment rank_of = runs_of(table.num_chunks(), limits.num_ranks);
  RandomStream random(seed);
  for (std::size_t last = rank_of.size() - 1; last > 0; --last) {
    const std::int32_t other = random.between(0, static_cast<std::int32_t>(last));
    std::swap(rank_of[last], rank_of[static_cast<std::size_t>(other)]);
  }
  return rank_of;
}

}  // namespace magi
