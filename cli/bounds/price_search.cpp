// SPDX-License-Identifier: Apache-2.0
#include "bounds/price_search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace magi::cli {
namespace {

/// A part of the walk: how many area steps its table has, of the finest one's, its share of the
/// work, and how the step length falls: by kShrink after so many calls without progress.
struct Phase {
  std::int32_t divisor;
  double work_share;
  double first_length;
  double last_length;
  std::int32_t spin_budget;
};
constexpr std::array<Phase, 3> kPhases{
    {{16, 0.15, 1.0, 0.1, 25}, {4, 0.3, 0.4, 0.05, 20}, {1, 1.0, 0.25, 0.003, 15}}};
constexpr double kShrink = 0.7;
/// The share of the new direction in a step; the rest is the one before, which damps swings.
constexpr double kNewDirection = 0.3;
/// Progress is a rise of the bound by this share of the known rows.
constexpr double kProgress = 1.0 / 2000.0;
/// Tables are coarser where the work does not suffice for about kUsualCalls calls. Below
/// kFewestSteps rounding leaves little to prove.
constexpr std::int64_t kFewestSteps = 64;
constexpr std::int64_t kUsualCalls = 150;

class Walk {
 public:
  Walk(const PricedChunks& chunks, const Placement& placement, std::int64_t known)
      : chunks_(chunks), known_(known), prices_(chunks.area.size()), rounded_(prices_.size()) {
    for (std::int32_t r = 0; r < placement.num_ranks; ++r) {
      std::int32_t end = 0;
      for (const std::int32_t chunk : placement.chunks_of(r)) {
        const auto c = static_cast<std::size_t>(chunk);
        const std::int32_t seen =
            std::max(0, chunks.seen_end[c] - std::max(chunks.seen_begin[c], end));
        prices_[c] = seen - chunks.own_rows[c];
        end = chunks.seen_end[c];
      }
    }
  }

  /// Leaves the prices at the best of the phase. Returns the cells that were filled.
  std::int64_t run(const Phase& phase, std::int32_t area_steps, std::int64_t work) {
    CheapestSet cheapest(chunks_, area_steps);
    std::vector<double> direction(prices_.size(), 0.0);
    std::vector<double> best_prices = prices_;
    std::int64_t best = std::numeric_limits<std::int64_t>::min();
    std::int64_t spent = 0;
    std::int32_t idle = 0;
    for (double length = phase.first_length; length > phase.last_length;) {
      if (spent + cheapest.num_cells() > work || best >= known_) break;
      spent += cheapest.num_cells();
      const std::int64_t bound = bound_of_prices(cheapest);
      const bool is_progress = static_cast<double>(bound) >
                               static_cast<double>(best) + static_cast<double>(known_) * kProgress;
      idle = is_progress ? 0 : idle + 1;
      if (idle >= phase.spin_budget) {
        length *= kShrink;
        idle = 0;
      }
      if (bound > best) {
        best = bound;
        best_prices = prices_;
      }
      step(length * static_cast<double>(std::max<std::int64_t>(known_ - bound, 1)), direction);
    }
    if (spent > 0) prices_ = best_prices;
    return spent;
  }

  std::vector<std::int32_t> rounded_prices() {
    round();
    return rounded_;
  }

 private:
  void round() {
    const double most = chunks_.max_price();
    for (std::size_t c = 0; c < prices_.size(); ++c) {
      prices_[c] = std::clamp(prices_[c], -most, most);
      rounded_[c] = static_cast<std::int32_t>(std::lround(prices_[c]));
    }
  }

  std::int64_t bound_of_prices(CheapestSet& cheapest) {
    round();
    const std::int64_t all = std::accumulate(rounded_.begin(), rounded_.end(), std::int64_t{0});
    return all + chunks_.num_ranks * cheapest.find(rounded_, set_);
  }

  /// Against what the set shows: all ranks would hold its chunks, and nobody the others.
  void step(double length, std::vector<double>& direction) {
    std::vector<double> slope(prices_.size(), 1.0);
    for (const std::int32_t c : set_) slope[static_cast<std::size_t>(c)] -= chunks_.num_ranks;
    double square = 0.0;
    for (std::size_t c = 0; c < slope.size(); ++c) {
      direction[c] += kNewDirection * (slope[c] - direction[c]);
      square += slope[c] * slope[c];
    }
    if (square == 0.0) return;
    for (std::size_t c = 0; c < slope.size(); ++c) prices_[c] += length / square * direction[c];
  }

  const PricedChunks& chunks_;
  std::int64_t known_;
  std::vector<double> prices_;
  std::vector<std::int32_t> rounded_;
  std::vector<std::int32_t> set_;
};

}  // namespace

PriceProof search_prices(const PricedChunks& chunks, const Placement& placement, std::int64_t known,
                         std::int64_t work) {
  const std::int64_t row_cells = std::int64_t{chunks.num_chunks()} * chunks.max_chunks;
  const bool is_idle = chunks.max_price() == 0 || chunks.max_area == 0 || known == 0;
  if (is_idle) return {};
  const auto steps = static_cast<std::int32_t>(
      std::min<std::int64_t>(chunks.max_area_steps(), work / kUsualCalls / row_cells));
  if (steps < kFewestSteps) return {};
  Walk walk(chunks, placement, known);
  std::int64_t left = work;
  for (const Phase& phase : kPhases) {
    const std::int32_t coarse =
        std::max(static_cast<std::int32_t>(kFewestSteps), steps / phase.divisor);
    left -= walk.run(phase, coarse,
                     static_cast<std::int64_t>(static_cast<double>(left) * phase.work_share));
  }
  return {.area_steps = steps, .prices = walk.rounded_prices()};
}

}  // namespace magi::cli
