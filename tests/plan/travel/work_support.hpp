// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "magi/mask_builders.hpp"
#include "plan/plan_support.hpp"
#include "plan/tables/layout.hpp"
#include "plan/travel/even.hpp"

// Grids of random masks, and what pieces of work hold, for the tests of moving queries.
namespace magi {

struct GridCase {
  Mask mask;
  std::int32_t num_ranks = 1;
  Placement rows_q;
  Placement rows_k;
  planner::WorkGrid grid;
};

inline GridCase random_grid(RandomStream& random) {
  GridCase test;
  RandomMaskOptions options;
  options.is_square = random.chance(60);
  test.mask = random_mask(random, options);
  test.num_ranks = random.between(1, 6);
  test.rows_q = random_placement(random, test.mask.rows_q, test.num_ranks);
  test.rows_k =
      options.is_square ? test.rows_q : random_placement(random, test.mask.rows_k, test.num_ranks);
  test.grid = planner::make_work_grid(test.mask, planner::make_layout(test.rows_q),
                                      planner::make_layout(test.rows_k), random.between(1, 20));
  return test;
}

/// One causal document whose rows lie in order, on equal ranks.
inline GridCase ordered_causal(std::int32_t rows, std::int32_t num_ranks, std::int32_t part_rows) {
  GridCase test;
  test.mask = {rows, rows, {band_slice({0, rows}, {0, rows}, MaskType::Causal)}};
  test.num_ranks = num_ranks;
  std::vector<std::int32_t> chunk_rank;
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) chunk_rank.push_back(rank);
  test.rows_q = test.rows_k =
      placement_from_chunks(rows, rows / num_ranks, num_ranks, std::move(chunk_rank));
  const planner::Layout layout = planner::make_layout(test.rows_q);
  test.grid = planner::make_work_grid(test.mask, layout, layout, part_rows);
  return test;
}

inline std::vector<std::int64_t> loads_of(const std::vector<planner::WorkPiece>& pieces,
                                          std::int32_t num_ranks) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(num_ranks));
  for (const planner::WorkPiece& piece : pieces) {
    loads.at(static_cast<std::size_t>(piece.rank)) += area(piece.slice);
  }
  return loads;
}

}  // namespace magi
