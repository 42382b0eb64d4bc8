// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "magi/plan.hpp"
#include "simulate/cluster.hpp"

// Predicted steps of distributed attention on clusters that need not be at hand: the library's own
// plans, and what other systems do.
namespace magi::simulate {

/// Times are those of the slowest rank, bytes the sums over what all ranks send.
struct PassFigures {
  double seconds = 0.0;
  double attending_seconds = 0.0;  ///< of the rank that attends longest
  std::array<std::int64_t, kNumLinkClasses> bytes{};

  /// Communication that no attention hides, and waits for other ranks.
  double exposed_seconds() const { return seconds - attending_seconds; }
};

struct Figures {
  std::string strategy;
  /// Why the strategy cannot run, in one sentence; then all else is empty.
  std::string refusal;
  std::array<PassFigures, kNumPasses> passes;
  std::vector<double> rank_work;  ///< visible pairs times query heads
  std::int64_t memory_bytes = 0;  ///< of the rank that holds most, in the backward

  double step_seconds() const { return passes[0].seconds + passes[1].seconds; }
  std::int64_t bytes(LinkClass link) const {
    const auto index = static_cast<std::size_t>(link);
    return passes[0].bytes[index] + passes[1].bytes[index];
  }
  /// Most work of a rank over the mean.
  double balance() const;
};

struct Problem {
  const Mask& mask;  ///< of self-attention
  PlanConfig config;
  Cluster cluster;
  std::int32_t ulysses_degree = 0;  ///< ranks of USP that share heads; 0: as many as fit a node
  /// Elements of a latent, of which keys and values are projections, and of the rotated part of a
  /// key beside it; absent: there are none.
  struct Latents {
    std::int32_t latent = 0;
    std::int32_t rope = 0;
  };
  std::optional<Latents> latents = {};
};

/// Names of the library's placements, in the order of PlacementAlgorithm.
std::vector<std::string> placement_strategies();
/// "queries": plans that move queries too, between 64 ranks at most; "heads": plans in which ranks
/// share out the heads, in as many shares as ranks and kv heads allow; "mixed": in the fewer shares
/// that are fastest, so that tokens are shared out too; "auto_work": what WorkMode::Auto chooses;
/// "latents": latents travel in place of keys and values, from which they are projected.
std::vector<std::string> moving_strategies();
/// "ring", "zigzag_ring", "all_gather", "ulysses", "usp".
std::vector<std::string> baseline_strategies();

/// Predicts one strategy. Throws InvalidArgument for a mask of cross-attention, for a name that is
/// none of the above, and for what make_plan refuses; what a baseline's scheme cannot do, more
/// ranks than queries move between, and heads that ranks cannot share are a refusal in its figures.
Figures simulate(const Problem& problem, const std::string& strategy);

}  // namespace magi::simulate
