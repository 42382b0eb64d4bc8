// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"

namespace magi::planner {

/// The way received keys are divided, the same on all ranks.
struct StageShape {
  StageMode mode = StageMode::Heads;  ///< Heads or Rows
  std::int32_t num_exchanges = 0;     ///< of keys and values; 0 where nobody receives anything
  std::int32_t min_stage_rows = 1;
  /// Overlap degree 0: a rank that receives rows copies its own to the front of the buffer and
  /// attends to all of them at once.
  bool is_gathering = false;
  std::int32_t stages_in_flight = 0;  ///< as in Plan
  std::int32_t num_head_parts = 1;    ///< by rows: each run comes in so many sections of kv heads

  std::int32_t num_receive_segments() const {
    if (mode == StageMode::Heads) return num_exchanges > 0 ? 1 : 0;
    return num_exchanges / num_head_parts;
  }
};

/// Remote stages that are of use to one rank.
std::int32_t useful_stages(const PlanConfig& config, std::int32_t degree, std::int32_t remote_rows);

/// Whether remote stages are sections of kv heads, not runs of rows.
bool is_by_heads(const PlanConfig& config);

/// The shape for an overlap degree. The only place that asks whether the degree is 0.
StageShape shape_stages(const PlanConfig& config, std::int32_t degree,
                        const std::vector<std::int32_t>& remote_rows);

/// Part `part` of `count` things shared out to `num_parts` as equally as they can be.
Range share_of(std::int32_t count, std::int32_t num_parts, std::int32_t part);

/// Whether remote stages may be of this mode, Heads or Rows.
bool allows_stages(const PlanConfig& config, StageMode mode);

/// The exchanges of keys and values, then those of their gradients, stage by stage. Where stages
/// take turns, the keys of a stage leave before the gradients of the one whose turn they take.
std::vector<Exchange> make_exchanges(const StageShape& shape, const PlanConfig& config);

/// The attention calls of one rank: own keys (where they are gathered: all keys), then the keys of
/// each stage that show it any. `segment_begin` holds the first slice of each key segment, and the
/// end.
std::vector<Attend> make_attends(const StageShape& shape, const std::vector<Exchange>& exchanges,
                                 const PlanConfig& config,
                                 const std::vector<std::int32_t>& segment_begin);

}  // namespace magi::planner
