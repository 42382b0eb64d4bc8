// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "mask/random_mask.hpp"
#include "plan/placement/pair_search.hpp"

namespace magi {

/// Iterated local search (Lourenco, Martin, Stutzle 2003): a few random swaps, then the pair search
/// over the ranks they touched; kept when the objective does not rise.
template <typename Keys>
void improve_by_kicks(PairSearch<Keys>& search, std::int32_t weight, std::int64_t budget) {
  constexpr std::int32_t kMostSwaps = 3;
  constexpr std::uint64_t kSeed = 20;
  RandomStream random(kSeed);
  search.run(weight, budget);
  typename PairSearch<Keys>::State best = search.state();
  std::int64_t best_objective = search.objective(weight);
  const auto below = [&](std::size_t count) {
    return static_cast<std::size_t>(random.between(0, static_cast<std::int32_t>(count) - 1));
  };
  while (budget > 0) {
    --budget;
    const std::int32_t swaps = random.between(1, kMostSwaps);
    for (std::int32_t s = 0; s < swaps; ++s) {
      const std::size_t i = below(best.chunks.size());
      const std::size_t j = (i + 1 + below(best.chunks.size() - 1)) % best.chunks.size();
      const auto& chunks = search.state().chunks;
      if (chunks[i].empty() || chunks[j].empty()) continue;
      const std::size_t a = below(chunks[i].size());
      const std::size_t b = below(chunks[j].size());
      search.exchange(i, j, a, b);
    }
    search.run(weight, budget);
    const std::int64_t objective = search.objective(weight);
    if (objective <= best_objective) {
      best = search.state();
      best_objective = objective;
    } else {
      search.restore(best);
    }
  }
}

}  // namespace magi
