// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/random.hpp"
#include "plan/placement/pair_search.hpp"

namespace magi {

/// Iterated local search (Lourenco, Martin, Stutzle 2003): a random swap, then the pair search over
/// the ranks it touched; kept when the objective does not rise. One swap per kick beat two and
/// more, and accepting small rises did not pay (docs/placement.md).
template <typename Keys>
void improve_by_kicks(PairSearch<Keys>& search, std::int32_t price, std::int64_t budget) {
  constexpr std::uint64_t kSeed = 20;
  RandomStream random(kSeed);
  const auto below = [&](std::size_t count) {
    return static_cast<std::size_t>(random.between(0, static_cast<std::int32_t>(count) - 1));
  };
  search.run(price, budget);
  typename PairSearch<Keys>::State best = search.state();
  std::int64_t best_objective = search.objective(price);
  const std::size_t num_ranks = best.chunks.size();
  while (budget > 0) {
    budget -= search.upkeep();
    const std::size_t i = below(num_ranks);
    const std::size_t j = (i + 1 + below(num_ranks - 1)) % num_ranks;
    if (best.chunks[i].empty() || best.chunks[j].empty()) continue;
    const std::size_t a = below(best.chunks[i].size());
    const std::size_t b = below(best.chunks[j].size());
    search.exchange(i, j, a, b);
    search.run(price, budget);
    const std::int64_t objective = search.objective(price);
    if (objective <= best_objective) {
      best = search.state();
      best_objective = objective;
    } else {
      search.restore(best);
    }
  }
}

}  // namespace magi
