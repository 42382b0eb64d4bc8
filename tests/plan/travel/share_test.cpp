// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/share.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "plan/travel/work_support.hpp"
#include "support/random_streams.hpp"

namespace magi::planner {
namespace {

/// Bytes and the largest area of work that is shared out, counted tile by tile.
struct Figures {
  std::int64_t bytes = 0;
  double balance = 1.0;
};

Figures figures_of(const GridCase& test, const std::vector<std::int32_t>& rank_of,
                   const RowCosts& costs) {
  Figures figures;
  std::set<std::pair<std::int32_t, std::int32_t>> read_q;
  std::set<std::pair<std::int32_t, std::int32_t>> read_k;
  std::vector<std::int64_t> loads(static_cast<std::size_t>(test.num_ranks));
  for (std::size_t t = 0; t < rank_of.size(); ++t) {
    const WorkTile& tile = test.grid.tiles[t];
    read_q.insert({rank_of[t], tile.q});
    read_k.insert({rank_of[t], tile.k});
    loads.at(static_cast<std::size_t>(rank_of[t])) += tile.area;
  }
  for (const auto& [rank, part] : read_q) {
    const WorkPart& rows = test.grid.q[static_cast<std::size_t>(part)];
    if (rows.owner != rank) figures.bytes += rows.rows() * costs.q;
  }
  for (const auto& [rank, part] : read_k) {
    const WorkPart& rows = test.grid.k[static_cast<std::size_t>(part)];
    if (rows.owner != rank) figures.bytes += rows.rows() * costs.k;
  }
  figures.balance = static_cast<double>(*std::ranges::max_element(loads)) * test.num_ranks /
                    static_cast<double>(test.grid.total_area());
  return figures;
}

TEST(ShareWork, IsTheSameEachTimeAndNamesRanks) {
  for (RandomStream& random : testing::RandomStreams(50)) {
    const GridCase test = random_grid(random);
    const RowCosts costs{random.between(1, 1 << 20), random.between(1, 1 << 20)};
    const auto rank_of = share_work(test.grid, test.num_ranks, costs, {});
    EXPECT_EQ(rank_of, share_work(test.grid, test.num_ranks, costs, {}));
    ASSERT_EQ(rank_of.size(), test.grid.tiles.size());
    for (const std::int32_t rank : rank_of) EXPECT_TRUE(rank >= 0 && rank < test.num_ranks);
  }
}

TEST(ShareWork, OneCausalDocumentInOrderIsEvenAndNeedsHalfOfWhatZigzagKeysMove) {
  const GridCase test = ordered_causal(4096, 8, 128);
  const RowCosts costs{5, 6};
  const Figures figures = figures_of(test, share_work(test.grid, 8, costs, {}), costs);
  EXPECT_LT(figures.balance, 1.1);
  constexpr std::int64_t kZigzagBytes = 4096 * 21 / 4 * 6;  // 5.25 sequences of keys
  EXPECT_LT(figures.bytes, kZigzagBytes * 6 / 10);
}

TEST(ShareWork, DearQueriesStayAtHomeWhereKeysAloneAreEven) {
  RandomStream random(3);
  GridCase test = ordered_causal(1024, 4, 64);
  test.mask.slices = {band_slice({0, 1024}, {0, 1024}, MaskType::Full)};
  const Layout layout = make_layout(test.rows_q);
  test.grid = make_work_grid(test.mask, layout, layout, 64);
  const auto rank_of = share_work(test.grid, 4, {1000, 1}, {});
  for (std::size_t t = 0; t < rank_of.size(); ++t) {
    EXPECT_EQ(rank_of[t], test.grid.q[static_cast<std::size_t>(test.grid.tiles[t].q)].owner);
  }
}

TEST(ShareWork, NothingIsSharedOutWithoutPairs) {
  const Placement rows = placement_from_chunks(8, 4, 2, {0, 1});
  const Layout layout = make_layout(rows);
  const WorkGrid grid = make_work_grid({8, 8, {}}, layout, layout, 4);
  EXPECT_TRUE(share_work(grid, 2, {1, 1}, {}).empty());
}

}  // namespace
}  // namespace magi::planner
