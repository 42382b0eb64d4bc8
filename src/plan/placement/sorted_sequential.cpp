// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/placement/classic.hpp"
#include "plan/placement/rank_heap.hpp"

namespace magi {
namespace {

constexpr std::int32_t kFree = -1;

/// The last free chunk at or before a position, in nearly constant time (union-find, paths halved).
class FreeChunks {
 public:
  explicit FreeChunks(std::int32_t num_chunks) : link_(static_cast<std::size_t>(num_chunks) + 1) {
    std::iota(link_.begin(), link_.end(), 0);
  }

  /// -1 when there is none.
  std::int32_t last_at(std::int32_t chunk) {
    auto i = static_cast<std::size_t>(chunk) + 1;
    while (link_[i] != static_cast<std::int32_t>(i)) {
      link_[i] = link_[static_cast<std::size_t>(link_[i])];
      i = static_cast<std::size_t>(link_[i]);
    }
    return static_cast<std::int32_t>(i) - 1;
  }

  void take(std::int32_t chunk) { link_[static_cast<std::size_t>(chunk) + 1] = chunk; }

 private:
  std::vector<std::int32_t> link_;  // [chunk + 1]; entry 0 stands for "none"
};

struct Sample {
  std::int64_t area = 0;
  std::int32_t first = 0;  // chunks, inclusive
  std::int32_t last = 0;
};

std::vector<Sample> samples_by_area(const ChunkTable& table, const Mask& mask) {
  std::vector<Sample> samples;
  samples.reserve(mask.slices.size());
  for (const BandSlice& whole : mask.slices) {
    const BandSlice slice = shrink(whole);
    if (slice.q0 >= slice.q1) continue;
    samples.push_back(
        {area(slice), slice.q0 / table.chunk_size, (slice.q1 - 1) / table.chunk_size});
  }
  std::stable_sort(samples.begin(), samples.end(),
                   [](const Sample& a, const Sample& b) { return a.area > b.area; });
  return samples;
}

}  // namespace

Assignment place_sorted_sequential(const ChunkTable& table, const PlacementLimits& limits,
                                   const Mask& mask, double allocation_ratio) {
  Assignment rank_of(table.area.size(), kFree);
  FreeChunks free(table.num_chunks());
  RankHeap heap(limits);
  for (const Sample& sample : samples_by_area(table, mask)) {
    const std::int32_t length = sample.last - sample.first + 1;
    const auto quota =
        std::max<std::int32_t>(1, static_cast<std::int32_t>(std::ceil(allocation_ratio * length)));
    std::int32_t chunk = free.last_at(sample.last);
    while (chunk >= sample.first) {
      RankLoad rank = heap.pop();
      for (std::int32_t taken = 0; taken < quota && rank.count < limits.max_chunks; ++taken) {
        rank_of[static_cast<std::size_t>(chunk)] = rank.rank;
        rank.load += table.area[static_cast<std::size_t>(chunk)];
        ++rank.count;
        free.take(chunk);
        chunk = free.last_at(chunk);
        if (chunk < sample.first) break;
      }
      heap.push(rank);
    }
  }
  for (std::size_t c = 0; c < rank_of.size(); ++c) {
    if (rank_of[c] == kFree) rank_of[c] = heap.give_to_lightest(table.area[c]);
  }
  return rank_of;
}

}  // namespace magi
