// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/share.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/random.hpp"

namespace magi::planner {
namespace {

constexpr std::int64_t kShardCost = 1 << 16;         // of a mean shard of the costlier side
constexpr std::int64_t kMeanLoad = 1 << 20;          // areas are counted in this share of the mean
constexpr std::int64_t kFreeLoad = kMeanLoad / 256;  // above the mean and without a price

/// Prices of the load of a mean tile above the mean: sixteenths of what reading its rows costs. Low
/// ones let ranks trade work; higher ones made the search stop at the first even plan.
constexpr std::int64_t kFirstPrice = 4;
constexpr std::int64_t kLastPrice = 16;

/// Ranks that read the parts of one side: how often, and what a part costs one that does not own
/// it.
class Readers {
 public:
  Readers(const std::vector<WorkPart>& parts, std::int32_t num_ranks, double row_cost)
      : num_parts_(parts.size()), counts_(static_cast<std::size_t>(num_ranks) * parts.size()) {
    costs_.reserve(parts.size());
    owners_.reserve(parts.size());
    for (const WorkPart& part : parts) {
      costs_.push_back(std::llround(static_cast<double>(part.rows()) * row_cost));
      owners_.push_back(part.owner);
    }
  }

  std::int32_t owner(std::int32_t part) const { return owners_[static_cast<std::size_t>(part)]; }
  std::int64_t cost(std::int32_t part) const { return costs_[static_cast<std::size_t>(part)]; }
  std::int32_t& count(std::int32_t rank, std::int32_t part) {
    return counts_[static_cast<std::size_t>(rank) * num_parts_ + static_cast<std::size_t>(part)];
  }
  /// The cost that a rank without tiles of a part must fetch for one of them.
  std::int64_t fetched(std::int32_t part, std::int32_t rank) {
    return owner(part) != rank && count(rank, part) == 0 ? cost(part) : 0;
  }
  /// The cost that a rank no longer fetches without `num_tiles` of its tiles of a part.
  std::int64_t freed(std::int32_t part, std::int32_t num_tiles, std::int32_t rank) {
    return owner(part) != rank && count(rank, part) == num_tiles ? cost(part) : 0;
  }

 private:
  std::size_t num_parts_;
  std::vector<std::int32_t> counts_;  ///< [num_ranks, parts]
  std::vector<std::int64_t> costs_;
  std::vector<std::int32_t> owners_;
};

/// Costs of what each rank sends and receives. The search minimises the sum of x / 2 + x^2 / 4 over
/// both of all ranks, x in shards, so that none has much more than others: the busiest link tells
/// the time.
class Traffic {
 public:
  explicit Traffic(std::int32_t num_ranks)
      : received_(static_cast<std::size_t>(num_ranks)),
        sent_(static_cast<std::size_t>(num_ranks)),
        changes_(static_cast<std::size_t>(num_ranks)) {}

  void begin(std::int32_t from, std::int32_t to) {
    from_ = from;
    to_ = to;
    fetched_ = freed_ = 0;
    for (const std::int32_t rank : changed_) changes_[static_cast<std::size_t>(rank)] = 0;
    changed_.clear();
  }
  void add(std::int32_t owner, std::int64_t fetched, std::int64_t freed) {
    fetched_ += fetched;
    freed_ += freed;
    if (fetched == freed) return;
    changes_[static_cast<std::size_t>(owner)] += fetched - freed;
    changed_.push_back(owner);
  }
  std::int64_t change() const {
    std::int64_t total = rise(received_, to_, fetched_) + rise(received_, from_, -freed_);
    for (std::size_t i = 0; i < changed_.size(); ++i) {
      const bool is_first =
          std::find(changed_.begin(), changed_.begin() + static_cast<std::ptrdiff_t>(i),
                    changed_[i]) == changed_.begin() + static_cast<std::ptrdiff_t>(i);
      if (!is_first) continue;
      total += rise(sent_, changed_[i], changes_[static_cast<std::size_t>(changed_[i])]);
    }
    return total;
  }
  void make() {
    received_[static_cast<std::size_t>(to_)] += fetched_;
    received_[static_cast<std::size_t>(from_)] -= freed_;
    for (const std::int32_t rank : changed_) {
      sent_[static_cast<std::size_t>(rank)] += changes_[static_cast<std::size_t>(rank)];
      changes_[static_cast<std::size_t>(rank)] = 0;
    }
  }
  void receive(std::int32_t rank, std::int32_t owner, std::int64_t cost) {
    received_[static_cast<std::size_t>(rank)] += cost;
    sent_[static_cast<std::size_t>(owner)] += cost;
  }

 private:
  static std::int64_t rise(const std::vector<std::int64_t>& traffic, std::int32_t rank,
                           std::int64_t by) {
    const std::int64_t now = traffic[static_cast<std::size_t>(rank)];
    return by / 2 + (2 * now + by) * by / (4 * kShardCost);
  }

  std::vector<std::int64_t> received_;
  std::vector<std::int64_t> sent_;
  std::vector<std::int64_t> changes_;  ///< of sent_, by rank
  std::vector<std::int32_t> changed_;
  std::int32_t from_ = 0;
  std::int32_t to_ = 0;
  std::int64_t fetched_ = 0;
  std::int64_t freed_ = 0;
};

/// Threshold accepting over moves of tiles from rank to rank.
class ThresholdSearch {
 public:
  ThresholdSearch(const WorkGrid& grid, std::int32_t num_ranks, const RowCosts& costs)
      : grid_(grid),
        num_ranks_(num_ranks),
        shard_rows_(static_cast<double>(std::max(grid.q.back().end, grid.k.back().end)) /
                    num_ranks),
        unit_(static_cast<double>(kShardCost) / shard_rows_ /
              static_cast<double>(std::max(costs.q, costs.k))),
        queries_(grid.q, num_ranks, static_cast<double>(costs.q) * unit_),
        keys_(grid.k, num_ranks, static_cast<double>(costs.k) * unit_),
        traffic_(num_ranks),
        loads_(static_cast<std::size_t>(num_ranks)) {
    const double mean = static_cast<double>(grid.total_area()) / num_ranks;
    for (const WorkTile& tile : grid.tiles) {
      areas_.push_back(
          std::llround(static_cast<double>(tile.area) / mean * static_cast<double>(kMeanLoad)));
      const std::int32_t rank = queries_.owner(tile.q);
      rank_of_.push_back(rank);
      if (const std::int64_t cost = keys_.fetched(tile.k, rank); cost > 0) {
        traffic_.receive(rank, keys_.owner(tile.k), cost);
      }
      add(areas_.size() - 1, rank, 1);
    }
    const double rows = static_cast<double>(grid.q.back().end) / static_cast<double>(grid.q.size());
    tile_cost_ = std::llround(rows * static_cast<double>(costs.q + costs.k) * unit_);
    const auto num_tiles = static_cast<std::int64_t>(grid.tiles.size());
    tile_load_ = std::max<std::int64_t>(1, kMeanLoad * num_ranks / num_tiles);
  }

  std::vector<std::int32_t> run(std::int64_t num_moves) {
    const std::int64_t first_threshold = tile_cost_;
    for (std::int64_t move = 0; move < num_moves; ++move) {
      threshold_ = first_threshold - first_threshold * move / num_moves;
      price_16th_ = kFirstPrice + (kLastPrice - kFirstPrice) * move / num_moves;
      try_move();
    }
    return std::move(rank_of_);
  }

 private:
  std::int32_t draw(std::int32_t count) {
    return static_cast<std::int32_t>(((random_() >> 32) * static_cast<std::uint64_t>(count)) >> 32);
  }
  std::span<const std::int32_t> column(std::int32_t part) const {
    const auto begin = static_cast<std::size_t>(grid_.column_begin[static_cast<std::size_t>(part)]);
    const auto end =
        static_cast<std::size_t>(grid_.column_begin[static_cast<std::size_t>(part) + 1]);
    return {grid_.column_tiles.data() + begin, end - begin};
  }
  Range row(std::int32_t part) const {
    return {grid_.row_begin[static_cast<std::size_t>(part)],
            grid_.row_begin[static_cast<std::size_t>(part) + 1]};
  }
  const WorkTile& tile_at(std::int32_t tile) const {
    return grid_.tiles[static_cast<std::size_t>(tile)];
  }
  std::int32_t rank_of(std::int32_t tile) const { return rank_of_[static_cast<std::size_t>(tile)]; }

  void add(std::size_t tile, std::int32_t rank, std::int32_t sign) {
    loads_[static_cast<std::size_t>(rank)] += sign * areas_[tile];
    queries_.count(rank, grid_.tiles[tile].q) += sign;
    keys_.count(rank, grid_.tiles[tile].k) += sign;
  }

  /// A rank that is likely to have some of a tile's rows already, or any.
  std::int32_t draw_rank(const WorkTile& tile) {
    const std::int32_t choice = draw(16);
    if (choice < 3) return queries_.owner(tile.q);
    if (choice < 6) return keys_.owner(tile.k);
    if (choice < 10) {
      const Range tiles = row(tile.q);
      return rank_of(tiles.begin + draw(tiles.size()));
    }
    if (choice < 14) {
      const auto tiles = column(tile.k);
      const std::int32_t index = draw(static_cast<std::int32_t>(tiles.size()));
      return rank_of(tiles[static_cast<std::size_t>(index)]);
    }
    return draw(num_ranks_);
  }

  /// Tiles of `from` to move: one, or those in one row or column of the grid.
  enum class Kind { Tile, Row, Column };
  void gather(std::int32_t tile, Kind kind, std::int32_t from) {
    moved_.clear();
    const WorkTile& at = tile_at(tile);
    if (kind == Kind::Tile) moved_.push_back(tile);
    if (kind == Kind::Row) {
      const Range tiles = row(at.q);
      for (std::int32_t other = tiles.begin; other < tiles.end; ++other) {
        if (rank_of(other) == from) moved_.push_back(other);
      }
    }
    if (kind == Kind::Column) {
      for (const std::int32_t other : column(at.k)) {
        if (rank_of(other) == from) moved_.push_back(other);
      }
    }
  }

  void count_reads(Readers& readers, std::int32_t part, std::int32_t num_tiles, std::int32_t from,
                   std::int32_t to) {
    traffic_.add(readers.owner(part), readers.fetched(part, to),
                 readers.freed(part, num_tiles, from));
  }

  void try_move() {
    const std::int32_t tile = draw(static_cast<std::int32_t>(grid_.tiles.size()));
    const WorkTile& at = tile_at(tile);
    const std::int32_t from = rank_of(tile);
    const std::int32_t to = draw_rank(at);
    if (from == to) return;
    const std::int32_t choice = draw(8);
    const Kind kind = choice < 4 ? Kind::Tile : choice < 6 ? Kind::Row : Kind::Column;
    gather(tile, kind, from);
    traffic_.begin(from, to);
    const auto count = static_cast<std::int32_t>(moved_.size());
    if (kind != Kind::Column) count_reads(queries_, at.q, count, from, to);
    if (kind != Kind::Row) count_reads(keys_, at.k, count, from, to);
    std::int64_t area = 0;
    for (const std::int32_t other : moved_) {
      area += areas_[static_cast<std::size_t>(other)];
      if (kind == Kind::Row) count_reads(keys_, tile_at(other).k, 1, from, to);
      if (kind == Kind::Column) count_reads(queries_, tile_at(other).q, 1, from, to);
    }
    if (traffic_.change() + load_change(area, from, to) > threshold_) return;
    traffic_.make();
    for (const std::int32_t other : moved_) {
      const auto index = static_cast<std::size_t>(other);
      add(index, from, -1);
      add(index, to, 1);
      rank_of_[index] = to;
    }
  }

  std::int64_t load_change(std::int64_t area, std::int32_t from, std::int32_t to) const {
    const auto excess = [](std::int64_t load) {
      return std::max<std::int64_t>(0, load - kMeanLoad - kFreeLoad);
    };
    const std::int64_t load_from = loads_[static_cast<std::size_t>(from)];
    const std::int64_t load_to = loads_[static_cast<std::size_t>(to)];
    const std::int64_t more =
        excess(load_from - area) + excess(load_to + area) - excess(load_from) - excess(load_to);
    return more * price_16th_ / 16 * tile_cost_ / tile_load_;
  }

  const WorkGrid& grid_;
  std::int32_t num_ranks_;
  double shard_rows_;
  double unit_;  ///< of cost, per byte
  Readers queries_;
  Readers keys_;
  Traffic traffic_;
  std::vector<std::int64_t> loads_;
  std::vector<std::int64_t> areas_;  ///< of tiles, as shares of the mean load
  std::vector<std::int32_t> rank_of_;
  std::vector<std::int32_t> moved_;
  std::int64_t tile_cost_ = 0;  ///< of the rows of a mean tile
  std::int64_t tile_load_ = 1;
  std::int64_t threshold_ = 0;
  std::int64_t price_16th_ = 0;  ///< of the load of a mean tile above the mean, in tile costs / 16
  RandomStream random_{1};
};

}  // namespace

std::vector<std::int32_t> share_work(const WorkGrid& grid, std::int32_t num_ranks,
                                     const RowCosts& costs, const WorkEffort& effort) {
  if (grid.tiles.empty()) return {};
  const auto num_tiles = static_cast<std::int64_t>(grid.tiles.size());
  const std::int64_t num_moves = std::min(num_tiles * effort.moves_per_tile, effort.most_moves);
  return ThresholdSearch(grid, num_ranks, costs).run(num_moves);
}

}  // namespace magi::planner
