// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"

namespace magi::planner {

/// How received rows become waves, the same on all ranks.
struct WaveShape {
  bool is_combined = false;  ///< overlap degree 0: one buffer, one wave
  WaveMode mode = WaveMode::Heads;
  std::int32_t num_remote = 0;     ///< remote waves
  std::int32_t min_wave_rows = 1;  ///< by rows

  std::int32_t num_waves() const { return 1 + num_remote; }
  /// Key segments from 1 on.
  std::int32_t num_receive_segments() const {
    if (is_combined) return 1;
    return mode == WaveMode::Heads ? (num_remote > 0 ? 1 : 0) : num_remote;
  }
};

/// Heads or Rows: resolves Auto.
WaveMode resolve_wave_mode(const PlanConfig& config);

/// Remote waves that are of use to one rank.
std::int32_t useful_waves(const PlanConfig& config, std::int32_t degree, std::int32_t remote_rows);

/// The shape for an overlap degree; no remote waves where nobody receives anything.
WaveShape shape_waves(const PlanConfig& config, std::int32_t degree,
                      const std::vector<std::int32_t>& remote_rows);

/// Received rows of wave `wave` (0-based among `num_waves` of this rank) as a range of received
/// order: equal shares.
Range wave_rows(std::int32_t remote_rows, std::int32_t num_waves, std::int32_t wave);

/// The waves of one rank; its segments must be in place.
std::vector<Wave> make_waves(const WaveShape& shape, const PlanConfig& config,
                             const std::vector<std::int32_t>& segment_begin);

}  // namespace magi::planner
