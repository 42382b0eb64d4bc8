// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/even.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/travel/work_support.hpp"
#include "support/random_streams.hpp"

namespace magi::planner {
namespace {

std::vector<std::int32_t> at_owners(const WorkGrid& grid) {
  std::vector<std::int32_t> rank_of;
  for (const WorkTile& tile : grid.tiles) {
    rank_of.push_back(grid.q[static_cast<std::size_t>(tile.q)].owner);
  }
  return rank_of;
}

TEST(EvenOut, PiecesHoldEveryPairOnceByRank) {
  for (RandomStream& random : testing::RandomStreams(200)) {
    const GridCase test = random_grid(random);
    const auto pieces = even_out(test.grid, at_owners(test.grid), test.num_ranks,
                                 {random.between(1, 100), random.between(1, 100)});
    Mask whole{test.mask.rows_q, test.mask.rows_k, {}};
    for (const WorkPiece& piece : pieces) {
      EXPECT_EQ(piece.slice, shrink(piece.slice));
      whole.slices.push_back(piece.slice);
    }
    EXPECT_EQ(expand(whole), expand(test.mask));
    EXPECT_TRUE(std::ranges::is_sorted(pieces, {}, &WorkPiece::rank));
  }
}

TEST(EvenOut, AreasEndWithinAThousandthOfTheMean) {
  for (const std::int32_t num_ranks : {2, 3, 4, 6}) {
    const GridCase test = ordered_causal(1200, num_ranks, 1200);
    const auto loads =
        loads_of(even_out(test.grid, at_owners(test.grid), num_ranks, {5, 6}), num_ranks);
    const std::int64_t mean = area(test.mask) / num_ranks;
    EXPECT_LE(*std::ranges::max_element(loads), mean + mean / 1000 + 1200);
  }
}

TEST(EvenOut, ManyRanksShareWhatOneHas) {
  // Nearly all ranks lack little, one has all the rest: as after a search on many ranks.
  const GridCase test = ordered_causal(6400, 32, 50);
  std::vector<std::int32_t> rank_of = at_owners(test.grid);
  for (std::size_t t = 0; t < rank_of.size(); ++t) {
    rank_of[t] = t % 37 == 0 ? 0 : static_cast<std::int32_t>(t % 32);
  }
  const auto loads = loads_of(even_out(test.grid, rank_of, 32, {5, 6}), 32);
  const std::int64_t mean = area(test.mask) / 32;
  EXPECT_LE(*std::ranges::max_element(loads), mean + mean / 500);
}

TEST(EvenOut, EvenWorkStaysWhereItIs) {
  GridCase test = ordered_causal(64, 4, 16);
  test.mask.slices = {band_slice({0, 64}, {0, 64}, MaskType::Full)};
  const Layout layout = make_layout(test.rows_q);
  test.grid = make_work_grid(test.mask, layout, layout, 16);
  for (const WorkPiece& piece : even_out(test.grid, at_owners(test.grid), 4, {1, 1})) {
    EXPECT_EQ(piece.slice.q0 / 16, piece.rank);
  }
}

}  // namespace
}  // namespace magi::planner
