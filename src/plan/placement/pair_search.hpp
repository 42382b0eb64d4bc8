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

/// What a search minimises: remote rows plus, for area above the target, `weight` rows per
/// chunk_size pairs (the price of one row).
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
        area_shift_(std::bit_width(static_cast<std::uint32_t>(target.chunk_size)) - 1),
        changed_(static_cast<std::size_t>(limits.num_ranks), 0) {
    list_pairs();
  }

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
    mark_all_changed();
  }

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }
  void mark_all_changed() {
    ++clock_;
    for (std::int64_t& time : changed_) time = clock_;
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

  /// Price of `area` above the target, in rows.
  std::int64_t penalty(std::int64_t load, std::int32_t weight) const {
    constexpr std::int64_t kMost = std::int64_t{1} << 50;  // keeps the product in 64 bits
    const std::int64_t excess = load - target_.largest_area;
    if (excess <= 0) return 0;
    return ((std::min(excess, kMost) >> area_shift_) + 1) * weight;
  }
  std::int64_t objective(std::int32_t weight) const {
    std::int64_t sum = state_.rows;
    for (const std::int64_t load : state_.load) sum += penalty(load, weight);
    return sum;
  }

  /// Searches pairs that changed since they were last searched, until none improves or `budget`
  /// (visits of chunks; lowered by what was spent) is used up.
  void run(std::int32_t weight, std::int64_t& budget) {
    bool is_improving = true;
    while (is_improving && budget > 0) {
      is_improving = false;
      for (RankPair& pair : pairs_) {
        if (std::max(changed_[pair.i], changed_[pair.j]) <= pair.searched) continue;
        if (improve(pair.i, pair.j, weight, budget)) {
          changed_[pair.i] = changed_[pair.j] = ++clock_;
          is_improving = true;
        }
        pair.searched = clock_;
        if (budget <= 0) return;
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

  /// All pairs, or with very many ranks those of near indices: linear in chunks.
  void list_pairs() {
    const auto ranks = static_cast<std::size_t>(limits_.num_ranks);
    const std::size_t most = 4 * area_.size() / ranks + 1;
    for (std::size_t distance = 1; distance < ranks && distance <= most; ++distance) {
      for (std::size_t i = 0; i + distance < ranks; ++i) pairs_.push_back({i, i + distance, 0});
    }
  }

  bool improve(std::size_t i, std::size_t j, std::int32_t weight, std::int64_t& budget) {
    bool any = false;
    while (budget > 0) {
      budget -= static_cast<std::int64_t>(state_.chunks[i].size() + state_.chunks[j].size());
      pair_.load(keys_, state_.chunks[i], state_.chunks[j]);
      const Step step = best_step(i, j, weight);
      if (step.price >= 0) return any;
      apply(i, j, step);
      any = true;
    }
    return any;
  }

  Step best_step(std::size_t i, std::size_t j, std::int32_t weight) {
    const std::span<const std::int32_t> gain_x = pair_.gain_x();
    const std::span<const std::int32_t> gain_y = pair_.gain_y();
    const std::int64_t load_i = state_.load[i];
    const std::int64_t load_j = state_.load[j];
    const std::int64_t before = penalty(load_i, weight) + penalty(load_j, weight);
    const auto price_of = [&](std::int64_t rows, std::int64_t to_j) {
      return rows + penalty(load_i - to_j, weight) + penalty(load_j + to_j, weight) - before;
    };
    std::int32_t least_y = 0;
    for (const std::int32_t gain : gain_y) least_y = std::min(least_y, gain);
    Step best;
    consider_moves(i, j, price_of, best);
    for (std::size_t a = 0; a < gain_x.size(); ++a) {
      // Penalties are not negative, so gain_y[b] must be below this for the swap to be the best.
      std::int64_t below = best.price + before - gain_x[a];
      if (least_y >= below) continue;
      for (std::size_t b = 0; b < gain_y.size(); ++b) {
        if (gain_y[b] >= below) continue;
        const std::int64_t to_j = area_of(i, a) - area_of(j, b);
        if (price_of(std::int64_t{gain_x[a]} + gain_y[b], to_j) >= best.price) continue;
        // The sum of two gains is a lower bound: x[a] and y[b] may lean on each other.
        const std::int64_t exact = pair_.swap(a, b);
        const std::int64_t price = price_of(exact, to_j);
        if (price >= best.price) continue;
        best = {exact, price, a, b};
        below = best.price + before - gain_x[a];
      }
    }
    return best;
  }

  template <typename PriceOf>
  void consider_moves(std::size_t i, std::size_t j, const PriceOf& price_of, Step& best) const {
    if (has_room(j)) {
      for (std::size_t a = 0; a < pair_.gain_x().size(); ++a) {
        const std::int64_t price = price_of(pair_.gain_x()[a], area_of(i, a));
        if (price < best.price) best = {pair_.gain_x()[a], price, a, kNone};
      }
    }
    if (has_room(i)) {
      for (std::size_t b = 0; b < pair_.gain_y().size(); ++b) {
        const std::int64_t price = price_of(pair_.gain_y()[b], -area_of(j, b));
        if (price < best.price) best = {pair_.gain_y()[b], price, kNone, b};
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
  State state_;
  typename Keys::Pair pair_;
  std::vector<RankPair> pairs_;
  std::vector<std::int64_t> changed_;  // clock value per rank
  std::int64_t clock_ = 1;
};

}  // namespace magi
