// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/even.hpp"

#include <algorithm>
#include <optional>

namespace magi::planner {
namespace {

/// Areas may be above the mean by this share of it.
constexpr std::int64_t kFreeShare = 1000;
/// Changes for each rank; fewer suffice, as each moves a good part of what can be moved.
constexpr std::int64_t kMostChanges = 64;

/// A tile or a part of one.
struct Block {
  std::int32_t q = 0;
  std::int32_t k = 0;
  std::int64_t area = 0;
  std::int32_t rank = 0;
  std::vector<BandSlice> cuts;
};

Range rows_of(const Block& block, bool is_queries) {
  Range rows{kMaxRows, 0};
  for (const BandSlice& cut : block.cuts) {
    rows.begin = std::min(rows.begin, is_queries ? cut.q0 : cut.k0);
    rows.end = std::max(rows.end, is_queries ? cut.q1 : cut.k1);
  }
  return rows;
}

BandSlice cut_rows(const BandSlice& slice, Range rows, bool is_queries) {
  return is_queries ? cut_q(slice, rows) : cut_k(slice, rows);
}

std::int64_t area_of(const Block& block, Range rows, bool is_queries) {
  std::int64_t total = 0;
  for (const BandSlice& cut : block.cuts) total += area(cut_rows(cut, rows, is_queries));
  return total;
}

/// Takes the rows from `row` on out of a block.
Block split(Block& block, std::int32_t row, bool is_queries) {
  Block taken{.q = block.q, .k = block.k, .rank = block.rank};
  std::vector<BandSlice> left;
  for (const BandSlice& cut : block.cuts) {
    const BandSlice low = shrink(cut_rows(cut, {0, row}, is_queries));
    const BandSlice high = shrink(cut_rows(cut, {row, kMaxRows}, is_queries));
    if (low.q0 < low.q1) left.push_back(low);
    if (high.q0 < high.q1) taken.cuts.push_back(high);
    taken.area += area(high);
  }
  block.area -= taken.area;
  block.cuts = std::move(left);
  return taken;
}

/// The lowest row from which on a block has at most `most` pairs.
std::int32_t row_of_area(const Block& block, std::int64_t most, bool is_queries) {
  Range rows = rows_of(block, is_queries);
  const std::int32_t last = rows.end;
  while (rows.begin < rows.end) {
    const std::int32_t middle = rows.begin + (rows.end - rows.begin) / 2;
    if (area_of(block, {middle, last}, is_queries) <= most) {
      rows.end = middle;
    } else {
      rows.begin = middle + 1;
    }
  }
  return rows.begin;
}

/// Gives work of one rank to another until areas are even.
class Evener {
 public:
  Evener(const WorkGrid& grid, const std::vector<std::int32_t>& rank_of, std::int32_t num_ranks,
         const RowCosts& costs)
      : grid_(grid),
        costs_(costs),
        loads_(static_cast<std::size_t>(num_ranks)),
        blocks_(static_cast<std::size_t>(num_ranks)),
        readers_q_(loads_.size() * grid.q.size()),
        readers_k_(loads_.size() * grid.k.size()) {
    for (std::size_t t = 0; t < grid.tiles.size(); ++t) {
      const WorkTile& tile = grid.tiles[t];
      const auto cuts = grid.cuts_of(tile);
      add({.q = tile.q,
           .k = tile.k,
           .area = tile.area,
           .rank = rank_of[t],
           .cuts = {cuts.begin(), cuts.end()}});
    }
    mean_ = grid.total_area() / num_ranks;
  }

  void run() {
    const std::int64_t most = mean_ + mean_ / kFreeShare;
    const std::int64_t num_changes = kMostChanges * static_cast<std::int64_t>(loads_.size());
    for (std::int64_t i = 0; i < num_changes; ++i) {
      const auto busiest = std::ranges::max_element(loads_) - loads_.begin();
      if (loads_[static_cast<std::size_t>(busiest)] <= most) return;
      const std::optional<Change> change = best_change(static_cast<std::int32_t>(busiest));
      if (!change) return;
      make(static_cast<std::int32_t>(busiest), *change);
    }
  }

  std::vector<WorkPiece> pieces() const {
    std::vector<WorkPiece> pieces;
    for (const auto& blocks : blocks_) {
      for (const Block& block : blocks) {
        for (const BandSlice& cut : block.cuts) pieces.push_back({cut, block.rank});
      }
    }
    return pieces;
  }

 private:
  struct Change {
    std::size_t block = 0;
    std::int32_t rank = 0;
    std::int64_t area = 0;
    bool is_split_in_q = false;
    double price = 0.0;  ///< bytes per pair
  };

  static bool is_reading(const std::vector<std::int32_t>& readers, std::size_t num_parts,
                         std::int32_t rank, std::int32_t part) {
    return readers[static_cast<std::size_t>(rank) * num_parts + static_cast<std::size_t>(part)] > 0;
  }
  bool has_q(std::int32_t rank, std::int32_t part) const {
    return grid_.q[static_cast<std::size_t>(part)].owner == rank ||
           is_reading(readers_q_, grid_.q.size(), rank, part);
  }
  bool has_k(std::int32_t rank, std::int32_t part) const {
    return grid_.k[static_cast<std::size_t>(part)].owner == rank ||
           is_reading(readers_k_, grid_.k.size(), rank, part);
  }

  void add(Block block) {
    const auto rank = static_cast<std::size_t>(block.rank);
    loads_[rank] += block.area;
    ++readers_q_[rank * grid_.q.size() + static_cast<std::size_t>(block.q)];
    ++readers_k_[rank * grid_.k.size() + static_cast<std::size_t>(block.k)];
    blocks_[rank].push_back(std::move(block));
  }

  /// The cheapest area that `from` can give to a rank with less than the mean.
  std::optional<Change> best_change(std::int32_t from) const {
    const std::int64_t excess = loads_[static_cast<std::size_t>(from)] - mean_;
    const auto& blocks = blocks_[static_cast<std::size_t>(from)];
    if (blocks.empty()) return std::nullopt;
    // The cheapest change that is not small beside what is possible: many small ones never end.
    const std::int64_t largest = std::ranges::max(blocks, {}, &Block::area).area;
    const std::int64_t lacking = mean_ - *std::ranges::min_element(loads_);
    const std::int64_t least = std::max<std::int64_t>(1, std::min({largest, excess, lacking}) / 4);
    std::optional<Change> best;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      for (std::size_t to = 0; to < loads_.size(); ++to) {
        const std::int64_t area = std::min({blocks[b].area, excess, mean_ - loads_[to]});
        if (area < least) continue;
        const Change change = price(blocks[b], b, static_cast<std::int32_t>(to), area);
        const bool is_better = !best || change.price < best->price ||
                               (change.price == best->price && change.area > best->area);
        if (is_better) best = change;
      }
    }
    return best;
  }

  /// Rows that the rank has are free; of the others it reads the share that it computes of the
  /// side which is split.
  Change price(const Block& block, std::size_t index, std::int32_t to, std::int64_t area) const {
    const auto rows_q = static_cast<double>(grid_.q[static_cast<std::size_t>(block.q)].rows());
    const auto rows_k = static_cast<double>(grid_.k[static_cast<std::size_t>(block.k)].rows());
    const double cost_q = has_q(to, block.q) ? 0.0 : rows_q * static_cast<double>(costs_.q);
    const double cost_k = has_k(to, block.k) ? 0.0 : rows_k * static_cast<double>(costs_.k);
    const bool is_split_in_q = cost_q > cost_k || (cost_q == cost_k && rows_q > rows_k);
    const double share = static_cast<double>(area) / static_cast<double>(block.area);
    const double whole = is_split_in_q ? cost_k : cost_q;
    const double part = share * (is_split_in_q ? cost_q : cost_k);
    return {index, to, area, is_split_in_q, (whole + part) / static_cast<double>(area)};
  }

  void make(std::int32_t from, const Change& change) {
    auto& blocks = blocks_[static_cast<std::size_t>(from)];
    Block& block = blocks[change.block];
    Block taken;
    if (change.area == block.area) {
      taken = std::move(block);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(change.block));
      --readers_q_[static_cast<std::size_t>(from) * grid_.q.size() +
                   static_cast<std::size_t>(taken.q)];
      --readers_k_[static_cast<std::size_t>(from) * grid_.k.size() +
                   static_cast<std::size_t>(taken.k)];
    } else {
      const std::int32_t row = row_of_area(block, change.area, change.is_split_in_q);
      taken = split(block, row, change.is_split_in_q);
    }
    loads_[static_cast<std::size_t>(from)] -= taken.area;
    taken.rank = change.rank;
    if (!taken.cuts.empty()) add(std::move(taken));
  }

  const WorkGrid& grid_;
  RowCosts costs_;
  std::int64_t mean_ = 0;
  std::vector<std::int64_t> loads_;
  std::vector<std::vector<Block>> blocks_;  ///< by rank
  std::vector<std::int32_t> readers_q_;     ///< [num_ranks, parts] blocks of a rank that read it
  std::vector<std::int32_t> readers_k_;
};

}  // namespace

std::vector<WorkPiece> even_out(const WorkGrid& grid, const std::vector<std::int32_t>& rank_of,
                                std::int32_t num_ranks, const RowCosts& costs) {
  Evener evener(grid, rank_of, num_ranks, costs);
  evener.run();
  return evener.pieces();
}

}  // namespace magi::planner
