// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/backward_schedule.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace magi {
namespace {

/// Predicts the times of candidates and keeps the schedule that ends first.
class CandidateSearch {
 public:
  explicit CandidateSearch(const ScheduleInput& input) : input_(input) {
    consider(first_candidate(input.tiles));
  }

  Schedule take_schedule() { return std::move(schedule_); }
  std::int64_t least() const { return least_; }

  void consider(const Candidate& by) {
    Schedule schedule = make_schedule(input_, by);
    const std::int64_t time = finish_time(input_.tiles, schedule);
    const Ratio& gain = input_.tiles.policy.least_gain;
    if (least_ >= 0 && time >= least_ - gain.of(least_)) return;
    least_ = time;
    best_ = by;
    schedule_ = std::move(schedule);
  }

  /// Considers shorter items if too few would fill the GPU, and then longer ones in the tail.
  void search_steps() {
    const SchedulePolicy& policy = input_.tiles.policy;
    const bool is_uneven = input_.tiles.is_uneven;
    for (std::int64_t steps = best_.item_steps / 2; steps >= policy.least_item; steps /= 2) {
      Candidate by{.item_steps = steps,
                   .tail_steps = is_uneven ? std::min(steps, policy.uneven_tail) : steps};
      consider(by);
      by.tail_steps = steps;
      by.is_tail_alike = true;
      consider(by);
    }
    Candidate by = best_;
    for (by.tail_steps *= 2; by.tail_steps <= by.item_steps; by.tail_steps *= 2) consider(by);
  }

  /// Considers shorter items in the tail, which fill the last round of even items.
  void search_tail_steps() {
    Candidate by = best_;
    for (int halvings = 0; halvings < 3 && by.tail_steps > 1; ++halvings) {
      by.tail_steps /= 2;
      consider(by);
    }
  }

  /// Considers shorter tails, whose items miss the cache more, and wider sections, the last of
  /// which leaves fewer CTAs idle.
  void search_tails() {
    Candidate by = best_;
    while (by.tail_share > 1) {
      by.tail_share /= 2;
      consider_sections(by);
    }
  }

  void consider_sections(Candidate by) {
    for (by.section_factor = 1; by.section_factor <= 2; ++by.section_factor) consider(by);
  }

 private:
  const ScheduleInput& input_;
  Candidate best_;
  Schedule schedule_;
  std::int64_t least_ = -1;
};

/// Adds the cost of packed heads besides steps.
std::int64_t with_packing(const TileCosts& tiles, std::int64_t time, bool has_coarse_splits) {
  const SchedulePolicy& policy = tiles.policy;
  const int doublings = std::countr_zero(static_cast<std::uint32_t>(tiles.packed_heads));
  if (tiles.walk.is_group_first) return time + policy.in_turn_packing.of(time * doublings);
  return has_coarse_splits ? time + policy.packing_doubling.of(time * doublings) : time;
}

}  // namespace

Schedule choose_schedule(const TileCosts& tiles, const BackwardChoice& choice) {
  const ScheduleInput input{tiles, choice, allowed_splits(tiles, choice)};
  if (tiles.is_uneven ? !tiles.is_short : tiles.is_long) {
    return make_schedule(input, first_candidate(tiles));
  }
  const bool has_choice = input.split_counts.size() > 1;
  CandidateSearch search(input);
  if (has_choice && tiles.is_short) search.search_steps();
  if (has_choice && !tiles.is_uneven) search.search_tail_steps();
  if (tiles.is_uneven) search.search_tails();
  return search.take_schedule();
}

std::int64_t predicted_time(const TileCosts& tiles, const BackwardChoice& choice) {
  const ScheduleInput input{tiles, choice, allowed_splits(tiles, choice)};
  Candidate by = first_candidate(tiles);
  if (!tiles.is_short && tiles.num_global == 0) {
    const std::int64_t time = mean_time(tiles, make_schedule(input, by));
    return with_packing(tiles, time, tiles.is_uneven);
  }
  CandidateSearch search(input);
  if (tiles.is_uneven) {
    by.tail_share = kWholeTail / 8;
    search.consider_sections(by);
  }
  if (tiles.num_global == 0) return with_packing(tiles, search.least(), false);
  // A global k tile runs before all others that add to its sums.
  const std::int64_t global_steps = tiles.steps_of(tiles.by_cost.front()) * tiles.groups;
  return with_packing(tiles, search.least() + global_steps / input.split_counts.back(), false);
}

}  // namespace magi
