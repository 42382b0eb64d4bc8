// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"
#include "plan/layout.hpp"
#include "plan/needs.hpp"
#include "plan/waves.hpp"

namespace magi::planner {

/// What the cost model needs to know of one rank and key segment.
struct SegmentLoad {
  std::int64_t area = 0;
  std::int64_t rows_in = 0;
  std::int64_t rows_out = 0;
  std::int32_t peers_in = 0;
  std::int32_t peers_out = 0;
};

/// Local slices, waves and transfers of all ranks, with the loads that they mean.
struct Work {
  std::vector<RankPlan> ranks;
  std::vector<Transfer> transfers;
  std::vector<SegmentLoad> loads;  ///< [num_ranks, num_segments]
  std::int32_t num_segments = 1;

  SegmentLoad& load(std::int32_t rank, std::int32_t segment) {
    return loads[static_cast<std::size_t>(rank) * static_cast<std::size_t>(num_segments) +
                 static_cast<std::size_t>(segment)];
  }
  const SegmentLoad& load(std::int32_t rank, std::int32_t segment) const {
    return const_cast<Work*>(this)->load(rank, segment);
  }
};

struct WorkInputs {
  const Needs& needs;
  const Layout& layout_q;
  const Layout& layout_k;
  const WaveShape& shape;
  const PlanConfig& config;
};
Work build_work(const WorkInputs& inputs);

}  // namespace magi::planner
