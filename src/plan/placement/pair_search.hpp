// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/placement/classic.hpp"

namespace magi {

/// The objective that a search minimises: remote rows, plus a price for area above largest_area
/// that is counted in rows (chunk_size pairs of area make about one row).
struct SearchTarget {
  std::int64_t largest_area = 0;
  std::int32_t chunk_size = 1;
};

/// Local search over two ranks at a time (after Kernighan and Lin 1970): the best exchange of two
/// chunks, or move of one where counts may differ, again and again until no pair of ranks has one.
/// A state is always a placement within the count cap. Integer arithmetic only.
template <typename Keys>
class PairSearch {
 public:
  struct State {
    std::vector<std::vector<std::int32_t>> chunks;  // per rank, ascending
    std::vector<std::int64_t> load;
    std::int64_t rows = 0;  // remote rows up to a constant
  };

  PairSearch(const Keys& keys, const ChunkTable& table, const PlacementLimits& limits,
             const SearchTarget& target)
      : keys_(keys),
        area_(table.area),
        limits_(limits),
        target_(target),
        area_shift_(
            static_cast<int>(std::bit_width(static_cast<std::uint32_t>(target.chunk_size))) - 1),
        steep_shift_(static_cast<int>(std::bit_width(
            static_cast<std::uint64_t>(target.largest_area >> area_shift_) / kSteepShare))),
        changed_(static_cast<std::size_t>(limits.num_ranks), 0) {}

  void start_from(const Assignment& rank_of) {
    const auto ranks = static_cast<std::size_t>(limits_.num_ranks);
    state_.chunks.assign(ranks, {});
    state_.load.assign(ranks, 0);
    state_.rows = 0;
    for (std::size_t c = 0; c < rank_of.size(); ++c) {
      const auto r = static_cast<std::size_t>(rank_of[c]);
      state_.chunks[r].push_back(static_cast<std::int32_t>(c));
      state_.load[r] += area_[c];
    }
    list_pairs(rank_of);
    mark_all_changed();
  }

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }
  void mark_all_changed() {
    ++clock_;
    for (std::int64_t& time : changed_) time = clock_;
  }

  /// Work of copying a state and of looking through the pairs, in visits.
  std::int64_t upkeep() const {
    return 1 + static_cast<std::int64_t>((area_.size() + pairs_.size()) / 8);
  }

  Assignment assignment() const {
    Assignment rank_of(area_.size());
    for (std::size_t r = 0; r < state_.chunks.size(); ++r) {
      for (const std::int32_t c : state_.chunks[r]) {
        rank_of[static_cast<std::size_t>(c)] = static_cast<std::int32_t>(r);
      }
    }
    return rank_of;
  }

  /// Price of the load above the target, in rows; `price` is that of the first row.
  std::int64_t penalty(std::int64_t load, std::int32_t price) const {
    const std::int64_t excess = load - target_.largest_area;
    if (excess <= 0) return 0;
    // Convex, so that excess does not gather on one rank. The cap keeps the product in 64 bits.
    const std::int64_t rows = std::min((excess >> area_shift_) + 1, kMostExcess);
    return (rows + (rows * rows >> steep_shift_)) * price;
  }
  std::int64_t objective(std::int32_t price) const {
    std::int64_t sum = state_.rows;
    for (const std::int64_t load : state_.load) sum += penalty(load, price);
    return sum;
  }

  /// Searches pairs that changed since they were last searched, until none improves or `budget`
  /// (visits of chunks; lowered by what was spent) is used up.
  void run(std::int32_t price, std::int64_t& budget) {
    bool is_improving = true;
    while (is_improving && budget > 0) {
      is_improving = false;
      for (RankPair& pair : pairs_) {
        if (std::max(changed_[pair.i], changed_[pair.j]) <= pair.searched) continue;
        if (improve(pair.i, pair.j, price, budget)) {
          changed_[pair.i] = changed_[pair.j] = ++clock_;
          is_improving = true;
        }
        pair.searched = clock_;
        if (budget <= 0) return;
      }
    }
  }

  /// Lowers ranks above the target, heaviest first, with the help of the lightest ones.
  void repair(std::int32_t price, std::int64_t& budget) {
    std::vector<std::size_t> heavy;
    for (std::size_t r = 0; r < state_.load.size(); ++r) {
      if (state_.load[r] > target_.largest_area) heavy.push_back(r);
    }
    const auto heavier = [&](std::size_t a, std::size_t b) {
      return state_.load[a] != state_.load[b] ? state_.load[a] > state_.load[b] : a < b;
    };
    std::sort(heavy.begin(), heavy.end(), heavier);
    std::vector<std::size_t> light;
    for (const std::size_t rank : heavy) {
      light.clear();
      for (std::size_t r = 0; r < state_.load.size(); ++r) {
        if (may_pair(r, rank)) light.push_back(r);
      }
      const std::size_t most = std::min(kPartners, light.size());
      std::partial_sort(light.begin(), light.begin() + static_cast<std::ptrdiff_t>(most),
                        light.end(), [&](std::size_t a, std::size_t b) { return heavier(b, a); });
      for (std::size_t k = 0; k < most && state_.load[rank] > target_.largest_area; ++k) {
        if (light[k] == rank || !improve(rank, light[k], price, budget)) continue;
        changed_[rank] = changed_[light[k]] = ++clock_;
      }
    }
  }

  /// Exchanges x[a] of rank i and y[b] of rank j, whatever it costs.
  void exchange(std::size_t i, std::size_t j, std::size_t a, std::size_t b) {
    pair_.load(keys_, state_.chunks[i], state_.chunks[j]);
    apply(i, j, {pair_.swap(a, b), 0, a, b});
    changed_[i] = changed_[j] = ++clock_;
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  static constexpr std::uint64_t kSteepShare = 32;
  static constexpr std::int64_t kMostExcess = std::int64_t{1} << 24;
  static constexpr std::size_t kFewRanks = 16;
  static constexpr std::size_t kPartners = 8;  // lighter ranks that a repair looks at

  struct RankPair {
    std::size_t i = 0;
    std::size_t j = 0;
    std::int64_t searched = 0;  // clock value
  };

  struct Step {
    std::int64_t rows = 0;   // change of remote rows
    std::int64_t price = 0;  // change of rows and penalty
    std::size_t a = kNone;   // index into the chunks of i, or kNone
    std::size_t b = kNone;
  };

  bool may_pair(std::size_t i, std::size_t j) const {
    const auto node = static_cast<std::size_t>(limits_.devices_per_node);
    return node == 0 || i / node == j / node;
  }

  /// All pairs of few ranks (of a node of few); of many, those that hold neighbouring chunks:
  /// linear in chunks.
  void list_pairs(const Assignment& rank_of) {
    pairs_.clear();
    const auto ranks = static_cast<std::size_t>(limits_.num_ranks);
    const std::size_t node =
        limits_.devices_per_node > 0 ? static_cast<std::size_t>(limits_.devices_per_node) : ranks;
    if (node <= kFewRanks) {
      for (std::size_t i = 0; i < ranks; ++i) {
        for (std::size_t j = i + 1; j < ranks && may_pair(i, j); ++j) pairs_.push_back({i, j, 0});
      }
      return;
    }
    for (std::size_t c = 1; c < rank_of.size(); ++c) {
      const auto i = static_cast<std::size_t>(std::min(rank_of[c - 1], rank_of[c]));
      const auto j = static_cast<std::size_t>(std::max(rank_of[c - 1], rank_of[c]));
      if (i != j && may_pair(i, j)) pairs_.push_back({i, j, 0});
    }
    const auto key = [](const RankPair& pair) { return std::pair(pair.i, pair.j); };
    std::sort(pairs_.begin(), pairs_.end(),
              [&](const RankPair& a, const RankPair& b) { return key(a) < key(b); });
    const auto last =
        std::unique(pairs_.begin(), pairs_.end(),
                    [&](const RankPair& a, const RankPair& b) { return key(a) == key(b); });
    pairs_.erase(last, pairs_.end());
  }

  bool improve(std::size_t i, std::size_t j, std::int32_t price, std::int64_t& budget) {
    bool any = false;
    while (budget > 0) {
      budget -= static_cast<std::int64_t>(state_.chunks[i].size() + state_.chunks[j].size());
      pair_.load(keys_, state_.chunks[i], state_.chunks[j]);
      const Step step = best_step(i, j, price);
      if (step.price >= 0) return any;
      apply(i, j, step);
      any = true;
    }
    return any;
  }

  Step best_step(std::size_t i, std::size_t j, std::int32_t price) {
    const std::span<const std::int32_t> gain_x = pair_.gain_x();
    const std::span<const std::int32_t> gain_y = pair_.gain_y();
    const std::int64_t load_i = state_.load[i];
    const std::int64_t load_j = state_.load[j];
    const std::int64_t before = penalty(load_i, price) + penalty(load_j, price);
    const auto price_of = [&](std::int64_t rows, std::int64_t to_j) {
      return rows + penalty(load_i - to_j, price) + penalty(load_j + to_j, price) - before;
    };
    area_y_.clear();
    for (const std::int32_t c : state_.chunks[j]) {
      area_y_.push_back(area_[static_cast<std::size_t>(c)]);
    }
    std::int32_t least_y = 0;
    for (const std::int32_t gain : gain_y) least_y = std::min(least_y, gain);
    Step best;
    consider_moves(i, j, price_of, best);
    for (std::size_t a = 0; a < gain_x.size(); ++a) {
      // Penalties are not negative, so gain_y[b] must be below this for the swap to be the best.
      std::int64_t below = best.price + before - gain_x[a];
      if (least_y >= below) continue;
      const std::int64_t area_a = area_of(i, a);
      for (std::size_t b = 0; b < gain_y.size(); ++b) {
        if (gain_y[b] >= below) continue;
        const std::int64_t to_j = area_a - area_y_[b];
        if (price_of(std::int64_t{gain_x[a]} + gain_y[b], to_j) >= best.price) continue;
        // The sum of two gains is a lower bound: x[a] and y[b] may lean on each other.
        const std::int64_t exact = pair_.swap(a, b);
        const std::int64_t change = price_of(exact, to_j);
        if (change >= best.price) continue;
        best = {exact, change, a, b};
        below = best.price + before - gain_x[a];
      }
    }
    return best;
  }

  template <typename PriceOf>
  void consider_moves(std::size_t i, std::size_t j, const PriceOf& price_of, Step& best) const {
    if (has_room(j)) {
      for (std::size_t a = 0; a < pair_.gain_x().size(); ++a) {
        const std::int64_t change = price_of(pair_.gain_x()[a], area_of(i, a));
        if (change < best.price) best = {pair_.gain_x()[a], change, a, kNone};
      }
    }
    if (has_room(i)) {
      for (std::size_t b = 0; b < pair_.gain_y().size(); ++b) {
        const std::int64_t change = price_of(pair_.gain_y()[b], -area_of(j, b));
        if (change < best.price) best = {pair_.gain_y()[b], change, kNone, b};
      }
    }
  }

  bool has_room(std::size_t rank) const {
    return static_cast<std::int32_t>(state_.chunks[rank].size()) < limits_.max_chunks;
  }

  std::int64_t area_of(std::size_t rank, std::size_t index) const {
    return area_[static_cast<std::size_t>(state_.chunks[rank][index])];
  }

  void apply(std::size_t i, std::size_t j, const Step& step) {
    const std::int32_t from_i = step.a == kNone ? -1 : state_.chunks[i][step.a];
    const std::int32_t from_j = step.b == kNone ? -1 : state_.chunks[j][step.b];
    state_.rows += step.rows;
    if (from_i >= 0) take_out(i, step.a);
    if (from_j >= 0) take_out(j, step.b);
    if (from_i >= 0) put_in(j, from_i);
    if (from_j >= 0) put_in(i, from_j);
  }

  void take_out(std::size_t rank, std::size_t index) {
    state_.load[rank] -= area_of(rank, index);
    state_.chunks[rank].erase(state_.chunks[rank].begin() + static_cast<std::ptrdiff_t>(index));
  }

  void put_in(std::size_t rank, std::int32_t chunk) {
    std::vector<std::int32_t>& chunks = state_.chunks[rank];
    chunks.insert(std::lower_bound(chunks.begin(), chunks.end(), chunk), chunk);
    state_.load[rank] += area_[static_cast<std::size_t>(chunk)];
  }

  const Keys& keys_;
  const std::vector<std::int64_t>& area_;
  PlacementLimits limits_;
  SearchTarget target_;
  int area_shift_;
  int steep_shift_;  // log2 of the excess, in rows, at which the price of a row has doubled
  State state_;
  typename Keys::Pair pair_;
  std::vector<std::int64_t> area_y_;  // of the chunks of the pair's second rank
  std::vector<RankPair> pairs_;
  std::vector<std::int64_t> changed_;  // clock value per rank
  std::int64_t clock_ = 1;
};

}  // namespace magi
