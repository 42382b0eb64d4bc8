// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/schedule/host/schedule_cost.hpp"

// The candidates of a backward list's schedule: how long items should be, and what schedule that
// makes.
namespace magi {

/// A whole tail has this Candidate::tail_share.
inline constexpr std::int32_t kWholeTail = 16;

/// The inputs that a schedule is made from. Where k tiles are long enough for it, items have at
/// least item_steps, those of the tail at least tail_steps.
struct Candidate {
  std::int64_t item_steps = 1;
  std::int64_t tail_steps = 1;
  std::int32_t tail_share = kWholeTail;  ///< of the k tiles that a whole tail has
  std::int32_t section_factor = 1;       ///< more kv heads side by side than the fewest
  bool is_tail_alike = false;  ///< all k tiles of the tail are split as the longest of the list
};

/// Lists into how many items the head groups of a k tile and kv head may be split, ascending, each
/// number a multiple of the one before.
std::vector<std::int32_t> allowed_splits(const TileCosts& tiles, const BackwardChoice& choice);

/// The state that all candidates of a list share.
struct ScheduleInput {
  const TileCosts& tiles;
  const BackwardChoice& choice;
  std::vector<std::int32_t> split_counts;  ///< see allowed_splits
};

/// Returns the candidate for lists that are not short, whose items end well however long they are:
/// items are whole where k tiles are alike; where these are uneven, items are so short that the
/// next one finds their rows in the cache.
Candidate first_candidate(const TileCosts& tiles);

/// Makes the schedule of a candidate. Throws InvalidArgument if a list of it would have too many
/// items.
Schedule make_schedule(const ScheduleInput& input, const Candidate& by);

}  // namespace magi
