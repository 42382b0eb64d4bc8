// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "mask/slice_lists.hpp"
#include "plan/place_rows.hpp"
#include "plan/placement/classic.hpp"
#include "plan/tables/layout.hpp"
#include "plan/tables/needs.hpp"

namespace magi::planner {
namespace {

/// Rows of a key chunk that a rank's queries see.
struct Demand {
  std::int32_t rows = 0;
  std::int32_t chunk = 0;
  std::int32_t rank = 0;
};

/// Largest first; several ranges of one rank in one chunk add up.
std::vector<Demand> find_demands(const Mask& mask, const Placement& placement_q,
                                 std::int32_t chunk_size) {
  // A layout in which nobody owns keys: whatever a rank sees is remote.
  Layout nobody;
  nobody.rank_begin.assign(static_cast<std::size_t>(placement_q.num_ranks) + 1, 0);
  const Needs needs = find_needs(mask, make_layout(placement_q), nobody);
  std::vector<Demand> demands;
  for (std::int32_t rank = 0; rank < placement_q.num_ranks; ++rank) {
    for (const Range& keys : needs.remote_of(rank)) {
      for (std::int32_t row = keys.begin; row < keys.end;) {
        const std::int32_t chunk = row / chunk_size;
        const std::int64_t next = (std::int64_t{chunk} + 1) * chunk_size;
        const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(next, keys.end));
        const bool is_same =
            !demands.empty() && demands.back().chunk == chunk && demands.back().rank == rank;
        if (!is_same) demands.push_back({0, chunk, rank});
        demands.back().rows += end - row;
        row = end;
      }
    }
  }
  std::sort(demands.begin(), demands.end(), [](const Demand& a, const Demand& b) {
    return std::tie(b.rows, a.chunk, a.rank) < std::tie(a.rows, b.chunk, b.rank);
  });
  return demands;
}

}  // namespace

Placement place_keys(const Mask& mask, const Placement& placement_q,
                     const PlacementConfig& config) {
  const std::int32_t num_ranks = placement_q.num_ranks;
  if (config.algorithm != PlacementAlgorithm::Auto) {
    return place({mask.rows_k, mask.rows_q, transpose(mask.slices)}, num_ranks, config);
  }
  PlacementConfig sequential = config;
  sequential.algorithm = PlacementAlgorithm::SequentialSelect;
  const Placement base = place({mask.rows_k, mask.rows_k, {}}, num_ranks, sequential);
  const std::int32_t most =
      placement_limits(base.num_chunks(), num_ranks, config.token_tolerance).max_chunks;
  constexpr std::int32_t kNobody = -1;
  std::vector<std::int32_t> chunk_rank(base.chunk_rank.size(), kNobody);
  std::vector<std::int32_t> held(static_cast<std::size_t>(num_ranks), 0);
  for (const Demand& demand : find_demands(mask, placement_q, base.chunk_size)) {
    std::int32_t& owner = chunk_rank[static_cast<std::size_t>(demand.chunk)];
    std::int32_t& count = held[static_cast<std::size_t>(demand.rank)];
    if (owner != kNobody || count == most) continue;
    owner = demand.rank;
    ++count;
  }
  std::size_t rank = 0;
  for (std::int32_t& owner : chunk_rank) {
    if (owner != kNobody) continue;
    while (held[rank] == most) ++rank;
    owner = static_cast<std::int32_t>(rank);
    ++held[rank];
  }
  return placement_from_chunks(base.num_rows, base.chunk_size, num_ranks, std::move(chunk_rank));
}

}  // namespace magi::planner
