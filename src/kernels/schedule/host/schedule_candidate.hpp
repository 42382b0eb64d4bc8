// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/schedule/host/schedule_cost.hpp"

// Candidates for the schedule of a backward list: lengths of items, and the schedule of such
// items.
namespace magi {

/// A whole tail has this Candidate::tail_share.
inline constexpr std::int32_t kWholeTail = 16;

/// The inputs of a schedule. If k tiles are long enough for it, items have at least item_steps
/// steps, and those of the tail at least tail_steps.
struct Candidate {
  std::int64_t item_steps = 1;
  std::int64_t tail_steps = 1;
  std::int32_t tail_share = kWholeTail;  ///< sixteenths of a whole tail
  std::int32_t section_factor = 1;       ///< times the fewest kv heads side by side
  bool is_tail_alike = false;            ///< tail k tiles are split like the list's longest
};

/// The numbers of items into which the head groups of a k tile and kv head may be split, ascending,
/// each a multiple of the one before.
std::vector<std::int32_t> allowed_splits(const TileCosts& tiles, const BackwardChoice& choice);

/// The state that all candidates of a list share.
struct ScheduleInput {
  const TileCosts& tiles;
  const BackwardChoice& choice;
  std::vector<std::int32_t> split_counts;  ///< see allowed_splits
};

/// Returns the candidate for lists that are not short, which balance with items of any length:
/// items are whole if k tiles are alike; if these are uneven, items are so short that the next one
/// finds their rows in the cache.
Candidate first_candidate(const TileCosts& tiles);

/// Makes the schedule of a candidate. Throws InvalidArgument if its list would have too many
/// items.
Schedule make_schedule(const ScheduleInput& input, const Candidate& by);

}  // namespace magi
