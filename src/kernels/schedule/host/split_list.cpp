// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/split_list.hpp"

#include <algorithm>
#include <cstddef>

namespace magi {
namespace {

class Splitter {
 public:
  Splitter(ForwardList& list, const SplitShares& shares) : list_(list), shares_(shares) {}

  /// Appends the splits of `work`.
  void cut(const TileWork& work) {
    const SplitGrid grid = grid_of(work);
    const std::int32_t first_slot = list_.num_slots();
    list_.split_tiles.push_back(
        {.tile = work.tile, .first_slot = first_slot, .num_slots = grid.num_splits});
    const std::size_t first = splits_.size();
    for (std::int32_t i = 0; i < grid.num_splits; ++i) {
      splits_.push_back(
          {.tile = work.tile, .cost = work.cost / grid.num_splits, .slot = first_slot + i});
    }
    std::int64_t before = 0;
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      const TileRun run = run_of(work.tile, i);
      cut_record(&splits_[first], grid, i, before, run, list_.shape.keys);
      before += run.num_tiles;
    }
  }

  const std::vector<TileWork>& splits() const { return splits_; }

 private:
  TileRun run_of(std::int32_t tile, std::int32_t record) const {
    const std::int32_t row_begin = tile * list_.tile_tokens;
    const std::int32_t row_end =
        row_begin + std::min(list_.tile_tokens, list_.problem.rows_q - row_begin);
    return tile_run(list_.records[static_cast<std::size_t>(record)].band, row_begin, row_end,
                    list_.shape.keys);
  }

  SplitGrid grid_of(const TileWork& work) const {
    SplitGrid grid;
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      grid.num_k_tiles += run_of(work.tile, i).num_tiles;
    }
    grid.num_splits = shares_.num_splits(work.cost, grid.num_k_tiles);
    return grid;
  }

  ForwardList& list_;
  const SplitShares shares_;
  std::vector<TileWork> splits_;
};

}  // namespace

void split_long_tiles(ForwardList& list, const SplitRule& rule) {
  const std::int64_t tile_costs = list.total_cost() / list.head_groups;
  const SplitShares shares = split_shares(rule, tile_costs, list.head_groups, list.shape);
  Splitter splitter(list, shares);
  auto whole = list.tiles.begin();
  for (; whole != list.tiles.end() && shares.is_split(whole->cost); ++whole) {
    splitter.cut(*whole);
  }
  if (list.split_tiles.empty()) return;
  list.tiles.erase(list.tiles.begin(), whole);
  list.tiles.insert(list.tiles.end(), splitter.splits().begin(), splitter.splits().end());
  std::stable_sort(list.tiles.begin(), list.tiles.end(),
                   [](const TileWork& a, const TileWork& b) { return a.cost > b.cost; });
  list.num_works = static_cast<std::int32_t>(list.tiles.size());
}

}  // namespace magi
