// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "magi/plan.hpp"
#include "support/random_mask.hpp"

// Brute-force views of a plan and random plan inputs for the plan tests.
namespace magi {

/// Global row of each local row of a rank.
inline std::vector<std::int32_t> global_rows(const Placement& placement, std::int32_t rank) {
  std::vector<std::int32_t> rows;
  for (std::int32_t chunk = 0; chunk < placement.num_chunks(); ++chunk) {
    if (placement.chunk_rank[static_cast<std::size_t>(chunk)] != rank) continue;
    const Range range = placement.chunk_rows(chunk);
    for (std::int32_t row = range.begin; row < range.end; ++row) rows.push_back(row);
  }
  return rows;
}

/// Global key row behind each row of each key segment of a rank (-1: nothing arrives there).
inline std::vector<std::vector<std::int32_t>> segment_rows(const Plan& plan, std::int32_t rank) {
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  std::vector<std::vector<std::int32_t>> rows;
  for (const Segment& segment : own.k.segments) {
    rows.emplace_back(static_cast<std::size_t>(segment.num_rows), -1);
  }
  rows[0] = global_rows(plan.placement_k, rank);
  const bool is_combined = plan.num_waves == 1 && rows.size() > 1 && !rows[1].empty();
  if (is_combined) std::copy(rows[0].begin(), rows[0].end(), rows[1].begin());
  for (const Transfer& t : plan.transfers) {
    if (t.dst != rank) continue;
    const std::vector<std::int32_t> source = global_rows(plan.placement_k, t.src);
    for (std::int32_t i = 0; i < t.num_rows; ++i) {
      auto& slot = rows.at(static_cast<std::size_t>(t.dst_segment))
                       .at(static_cast<std::size_t>(t.dst_row + i));
      slot = slot == -1 ? source.at(static_cast<std::size_t>(t.src_row + i)) : -2;
    }
  }
  return rows;
}

/// How often each (query, key) pair is attended to for kv head `head`, over all ranks and waves.
inline std::vector<std::uint16_t> attended_pairs(const Plan& plan, std::int32_t head) {
  const auto rows_k = static_cast<std::size_t>(plan.mask.rows_k);
  std::vector<std::uint16_t> pairs(static_cast<std::size_t>(plan.mask.rows_q) * rows_k, 0);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const RankPlan& rank = plan.ranks[r];
    const auto queries = global_rows(plan.placement_q, static_cast<std::int32_t>(r));
    const auto keys = segment_rows(plan, static_cast<std::int32_t>(r));
    for (const Wave& wave : rank.waves) {
      if (head < wave.heads.begin || head >= wave.heads.end) continue;
      const auto& segment = keys.at(static_cast<std::size_t>(wave.k_segment));
      for (std::int32_t s = wave.slices.begin; s < wave.slices.end; ++s) {
        const BandSlice& slice = rank.slices.at(static_cast<std::size_t>(s));
        for (std::int32_t q = slice.q0; q < slice.q1; ++q) {
          const Range seen = visible_keys(slice, q);
          const auto row = static_cast<std::size_t>(queries.at(static_cast<std::size_t>(q)));
          for (std::int32_t k = seen.begin; k < seen.end; ++k) {
            const auto key = static_cast<std::size_t>(segment.at(static_cast<std::size_t>(k)));
            ++pairs.at(row * rows_k + key);
          }
        }
      }
    }
  }
  return pairs;
}

/// A random placement of every chunk, any layout, ranks with nothing included.
inline Placement random_placement(RandomStream& random, std::int32_t rows, std::int32_t num_ranks) {
  const std::int32_t chunk = random.between(1, 9);
  const bool is_padded = random.chance(50);
  const std::int32_t unit = chunk * num_ranks;
  const std::int32_t padded = is_padded ? (rows + unit - 1) / unit * unit : rows;
  std::vector<std::int32_t> chunk_rank(static_cast<std::size_t>((padded + chunk - 1) / chunk));
  for (std::int32_t& rank : chunk_rank) rank = random.between(0, num_ranks - 1);
  return placement_from_chunks(padded, chunk, num_ranks, std::move(chunk_rank));
}

inline PlanConfig random_config(RandomStream& random) {
  PlanConfig config;
  config.num_ranks = random.between(1, 8);
  config.num_heads_kv = random.chance(40) ? 1 : random.between(2, 4);
  config.num_heads_q = config.num_heads_kv * random.between(1, 4);
  config.head_dim_qk = random.between(1, 32);
  config.head_dim_v = random.between(1, 32);
  if (random.chance(20)) {
    config.overlap_degree = std::nullopt;
  } else {
    config.overlap_degree = random.between(0, 5);
  }
  config.wave_mode = static_cast<WaveMode>(random.between(0, 2));
  config.min_wave_rows = random.between(1, 12);
  return config;
}

/// A plan on a random mask and random placements (shared by q and k where the mask is square).
inline Plan random_plan(RandomStream& random) {
  RandomMaskOptions options;
  options.is_square = random.chance(50);
  const Mask mask = random_mask(random, options);
  const PlanConfig config = random_config(random);
  const Placement q = random_placement(random, mask.rows_q, config.num_ranks);
  const Placement k =
      options.is_square ? q : random_placement(random, mask.rows_k, config.num_ranks);
  return make_plan_on(mask, config, q, k);
}

}  // namespace magi
