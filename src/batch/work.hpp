// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "magi/batch.hpp"

namespace magi::batch {

/// Picoseconds: whole numbers, whose sums are equal in any order and on every machine.
using Ticks = std::int64_t;

constexpr double kTicksPerSecond = 1e12;

/// A sample that takes part.
struct Work {
  std::int32_t sample = 0;
  std::int32_t rows = 0;
  Ticks ticks = 0;  ///< on one rank
};

/// The work of a batch, longest sample first, and what it costs to spread it.
struct BatchWork {
  std::vector<Work> samples;
  Ticks row_fetch = 0;  ///< a row that comes from a rank of the node
  Ticks row_cross = 0;  ///< a row that comes from another node
  Ticks total = 0;
  std::int64_t total_rows = 0;
};

/// Throws InvalidArgument for a bad config, bad samples, and times above 4 * 10^6 seconds.
BatchWork work_of(std::span<const BatchSample> samples, const BatchConfig& config);

/// The ranks of a node, and rows of a rank in whole chunks.
inline std::int32_t node_size(const BatchConfig& config) {
  return config.devices_per_node == 0 ? config.num_ranks
                                      : std::min(config.devices_per_node, config.num_ranks);
}
inline std::int32_t chunks_per_rank(const BatchConfig& config) {
  return config.rows_per_rank / config.chunk_size;
}

/// The parts of each sample of a micro-batch.
inline std::vector<std::span<const BatchPart>> samples_of(std::span<const BatchPart> parts) {
  std::vector<std::span<const BatchPart>> samples;
  while (!parts.empty()) {
    const auto end = std::ranges::find_if(
        parts, [&](const BatchPart& part) { return part.sample != parts.front().sample; });
    samples.push_back(parts.first(static_cast<std::size_t>(end - parts.begin())));
    parts = parts.subspan(samples.back().size());
  }
  return samples;
}

/// The part of `ticks` that `rows` of `all` rows take; all parts together take no less.
inline Ticks share_of(Ticks ticks, std::int64_t rows, std::int64_t all) {
  return static_cast<Ticks>(
      std::ceil(static_cast<double>(ticks) * static_cast<double>(rows) / static_cast<double>(all)));
}

/// The least micro-batches whose memory holds all rows.
std::int32_t least_micro_batches(const BatchWork& work, const BatchConfig& config);

/// No micro-batch of `num_micro_batches` equal ones is shorter: all ranks together have at least
/// the work of all samples, and what is fetched by the least ranks that a sample can spread over.
Ticks bound_of(const BatchWork& work, const BatchConfig& config, std::int32_t num_micro_batches);
/// A step that no plan can beat: with more micro-batches than memory needs, the bound only rises.
double step_bound(const BatchWork& work, const BatchConfig& config);

/// The figures of the parts of a plan; `work` is work_of its samples.
BatchReport make_report(const BatchPlan& plan, const BatchWork& work);

}  // namespace magi::batch
