// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/random.hpp"
#include "magi/plan.hpp"

namespace magi::testing {

/// Who attends for the queries of one chunk to the keys of another, and where it reads them.
struct BlockWork {
  std::int32_t rank = 0;
  bool is_q_copied = false;  ///< own queries are read in a segment that holds a copy
  bool is_k_copied = false;  ///< own keys too
  std::int32_t k_copy = 0;   ///< the segment of that copy; 0: that of received rows of the chunk
};

/// Choices that plans of the planner leave no freedom in.
struct BlockPlanOptions {
  std::function<BlockWork(std::int32_t chunk_q, std::int32_t chunk_k)> work;
  std::int32_t num_received_segments = 1;  ///< of each space, where a rank receives any rows of it
  std::vector<Range> heads;                ///< sections of kv heads: each has exchanges and attends
  RandomStream* order = nullptr;           ///< shuffles each rank's attends; null: as they come
};

/// A plan built chunk by chunk without the planner, in which any rank may attend for the queries of
/// any other. `config` gives sizes. Slow: for masks of few chunks.
Plan make_block_plan(const Mask& mask, const PlanConfig& config, const Placement& placement_q,
                     const Placement& placement_k, const BlockPlanOptions& options);

}  // namespace magi::testing
