// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "magi/batch.hpp"

// Steps over a batch of samples by schemes with groups of ranks, by the costs of BatchPlan.
namespace magi::bench {

/// A step by one scheme, its micro-batches one after the other.
struct BatchFigures {
  std::string scheme;
  double seconds = 0.0;  ///< the longest rank of each micro-batch
  std::int32_t num_micro_batches = 0;
  std::int64_t most_rows = 0;  ///< that a rank holds
  std::int64_t node_bytes = 0;
  std::int64_t network_bytes = 0;
};

/// Every sample on all of `group_size` ranks, in data-parallel replicas of as many, which pack
/// samples up to their memory. Samples come in order, each to the replica and micro-batch that is
/// filled next; or `is_balanced`: the longest first, to the one that would end first. Nothing
/// where a sample does not fit, or the size does not divide the ranks.
std::optional<BatchFigures> simulate_fixed_size(std::span<const BatchSample> samples,
                                                const BatchConfig& config, std::int32_t group_size,
                                                bool is_balanced);

/// Each sample on the least power of two of ranks on which none holds more than `rows_per_rank` of
/// its rows, the longest first, to the aligned group that would end first and has memory. Nothing
/// where a sample does not fit.
std::optional<BatchFigures> simulate_powers(std::span<const BatchSample> samples,
                                            const BatchConfig& config, std::int32_t rows_per_rank);

/// The shortest step of each kind: "planned", "fixed" (in order), "balanced" (fixed and balanced),
/// both of any power of two of ranks, "powers" by the limit of memory, and "tuned_powers" by that
/// or any half of it, from batch to batch. Kinds that cannot hold the batch are left out.
std::vector<BatchFigures> compare_batch(std::span<const BatchSample> samples,
                                        const BatchConfig& config);

}  // namespace magi::bench
