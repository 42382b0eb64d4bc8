// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "plan/placement/pair_search.hpp"
#include "plan/placement/random.hpp"

namespace magi {

/// Iterated local search (Lourenco, Martin, Stutzle 2003): a few random swaps, then the pair search
/// over the ranks they touched; kept when the objective does not rise.
template <typename Keys>
void improve_by_kicks(PairSearch<Keys>& search, std::int32_t weight, std::int64_t budget) {
  constexpr std::uint32_t kMostSwaps = 3;
  constexpr std::uint64_t kSeed = 20;
  RandomBits random(kSeed);
  search.run(weight, budget);
  typename PairSearch<Keys>::State best = search.state();
  std::int64_t best_objective = search.objective(weight);
  const auto num_ranks = static_cast<std::uint32_t>(best.chunks.size());
  while (budget > 0) {
    --budget;
    const std::uint32_t swaps = 1 + random.below(kMostSwaps);
    for (std::uint32_t s = 0; s < swaps; ++s) {
      const std::size_t i = random.below(num_ranks);
      const std::size_t j = (i + 1 + random.below(num_ranks - 1)) % num_ranks;
      const auto& chunks = search.state().chunks;
      if (chunks[i].empty() || chunks[j].empty()) continue;
      const std::size_t a = random.below(static_cast<std::uint32_t>(chunks[i].size()));
      const std::size_t b = random.below(static_cast<std::uint32_t>(chunks[j].size()));
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
