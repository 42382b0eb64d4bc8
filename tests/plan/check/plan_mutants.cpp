// SPDX-License-Identifier: Apache-2.0
#include "plan/check/plan_mutants.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.hpp"
#include "plan/plan_oracle.hpp"
#include "plan/plan_support.hpp"

namespace magi::testing {
namespace {

/// An element of a list that is not empty.
template <typename List>
auto& any_of(RandomStream& random, List& list) {
  return list[static_cast<std::size_t>(
      random.between(0, static_cast<std::int32_t>(std::size(list)) - 1))];
}

/// A small step up or down.
template <typename Integer>
void nudge(RandomStream& random, Integer& value) {
  const std::int32_t by = random.chance(70) ? 1 : random.between(1, 4);
  value = static_cast<Integer>(random.chance(50) ? value + by : value - by);
}

template <typename List>
bool drop_or_double(RandomStream& random, List& list) {
  if (list.empty()) return false;
  const auto at = list.begin() + random.between(0, static_cast<std::int32_t>(list.size()) - 1);
  if (random.chance(50)) {
    list.erase(at);
  } else {
    const auto copy = *at;
    list.insert(at, copy);
  }
  return true;
}

template <typename List>
bool swap_two(RandomStream& random, List& list) {
  if (list.size() < 2) return false;
  const auto first = random.between(0, static_cast<std::int32_t>(list.size()) - 2);
  const auto second = random.between(first + 1, static_cast<std::int32_t>(list.size()) - 1);
  std::swap(list[static_cast<std::size_t>(first)], list[static_cast<std::size_t>(second)]);
  return true;
}

std::int32_t* any_bound(RandomStream& random, BandSlice& slice) {
  const std::array fields{&slice.q0, &slice.q1, &slice.k0, &slice.k1, &slice.d_min, &slice.d_max};
  return any_of(random, fields);
}

bool move_a_bound(RandomStream& random, Plan& plan) {
  RankPlan& rank = any_of(random, plan.ranks);
  if (rank.slices.empty()) return false;
  nudge(random, *any_bound(random, any_of(random, rank.slices)));
  return true;
}

bool loosen_a_diagonal(RandomStream& random, Plan& plan) {
  RankPlan& rank = any_of(random, plan.ranks);
  if (rank.slices.empty()) return false;
  BandSlice& slice = any_of(random, rank.slices);
  if (random.chance(50)) {
    slice.d_min = -kBandInfinity;
  } else {
    slice.d_max = kBandInfinity;
  }
  return true;
}

bool shift_a_slice(RandomStream& random, Plan& plan) {
  RankPlan& rank = any_of(random, plan.ranks);
  if (rank.slices.empty()) return false;
  BandSlice& slice = any_of(random, rank.slices);
  const std::int32_t by = random.chance(50) ? 1 : -1;
  const bool is_of_keys = random.chance(50);
  slice = shift(slice, is_of_keys ? 0 : by, is_of_keys ? by : 0);
  return true;
}

/// Attends keep their slices when one is put in or taken out at `index`.
void insert_slice(RankPlan& rank, std::int32_t index, const BandSlice& slice) {
  rank.slices.insert(rank.slices.begin() + index, slice);
  for (Attend& attend : rank.attends) {
    if (attend.slices.begin > index) ++attend.slices.begin;
    if (attend.slices.end > index) ++attend.slices.end;
  }
}
BandSlice take_slice(RankPlan& rank, std::int32_t index) {
  const BandSlice slice = rank.slices[static_cast<std::size_t>(index)];
  rank.slices.erase(rank.slices.begin() + index);
  for (Attend& attend : rank.attends) {
    if (attend.slices.begin > index) --attend.slices.begin;
    if (attend.slices.end > index) --attend.slices.end;
  }
  return slice;
}
std::int32_t any_index(RandomStream& random, const RankPlan& rank) {
  return random.between(0, static_cast<std::int32_t>(rank.slices.size()) - 1);
}

bool drop_a_slice(RandomStream& random, Plan& plan) {
  RankPlan& rank = any_of(random, plan.ranks);
  if (rank.slices.empty()) return false;
  take_slice(rank, any_index(random, rank));
  return true;
}

bool double_a_slice(RandomStream& random, Plan& plan) {
  RankPlan& rank = any_of(random, plan.ranks);
  if (rank.slices.empty()) return false;
  const std::int32_t index = any_index(random, rank);
  insert_slice(rank, index, rank.slices[static_cast<std::size_t>(index)]);
  return true;
}

bool give_a_slice_away(RandomStream& random, Plan& plan) {
  RankPlan& from = any_of(random, plan.ranks);
  RankPlan& to = any_of(random, plan.ranks);
  if (from.slices.empty() || to.slices.empty()) return false;
  const BandSlice slice = take_slice(from, any_index(random, from));
  if (!to.slices.empty()) insert_slice(to, any_index(random, to), slice);
  return true;
}

/// Right where the parts stay in order.
bool split_a_slice(RandomStream& random, Plan& plan) {
  RankPlan& rank = any_of(random, plan.ranks);
  if (rank.slices.empty()) return false;
  const std::int32_t index = any_index(random, rank);
  const BandSlice slice = rank.slices[static_cast<std::size_t>(index)];
  const bool is_by_keys = random.chance(50);
  if (slice.q1 < slice.q0 || slice.k1 < slice.k0) return false;
  const std::int32_t at =
      is_by_keys ? random.between(slice.k0, slice.k1) : random.between(slice.q0, slice.q1);
  insert_slice(rank, index, slice);
  auto& first = rank.slices[static_cast<std::size_t>(index)];
  auto& second = rank.slices[static_cast<std::size_t>(index) + 1];
  (is_by_keys ? first.k1 : first.q1) = at;
  (is_by_keys ? second.k0 : second.q0) = at;
  return true;
}

bool change_a_transfer(RandomStream& random, Plan& plan) {
  if (plan.transfers.empty()) return false;
  Transfer& t = any_of(random, plan.transfers);
  switch (random.between(0, 7)) {
    case 0:
      t.src = random.between(0, plan.config.num_ranks - 1);
      break;
    case 1:
      t.dst = random.between(0, plan.config.num_ranks - 1);
      break;
    case 2:
      nudge(random, t.src_row);
      break;
    case 3:
      nudge(random, t.dst_row);
      break;
    case 4:
      nudge(random, t.num_rows);
      break;
    case 5:
      nudge(random, t.dst_segment);
      break;
    default:
      t.space = t.space == Space::Keys ? Space::Queries : Space::Keys;
  }
  return true;
}

bool swap_rows_of_transfers(RandomStream& random, Plan& plan) {
  if (plan.transfers.size() < 2) return false;
  Transfer& a = any_of(random, plan.transfers);
  Transfer& b = any_of(random, plan.transfers);
  std::swap(a.src_row, b.src_row);
  if (random.chance(50)) std::swap(a.src, b.src);
  return true;
}

/// Right: two records in place of one.
bool split_a_transfer(RandomStream& random, Plan& plan) {
  if (plan.transfers.empty()) return false;
  const auto at = plan.transfers.begin() +
                  random.between(0, static_cast<std::int32_t>(plan.transfers.size()) - 1);
  if (at->num_rows < 2) return false;
  Transfer first = *at;
  first.num_rows = random.between(1, first.num_rows - 1);
  at->src_row += first.num_rows;
  at->dst_row += first.num_rows;
  at->num_rows -= first.num_rows;
  plan.transfers.insert(at, first);
  return true;
}

/// Rows that nobody asked for: a segment grows by them, or a transfer shrinks with its segment.
bool move_more_or_less(RandomStream& random, Plan& plan) {
  if (plan.transfers.empty()) return false;
  Transfer& t = any_of(random, plan.transfers);
  RankPlan& dst = plan.ranks[static_cast<std::size_t>(t.dst)];
  auto& segments = (t.space == Space::Keys ? dst.k : dst.q).segments;
  // An earlier change may have named a segment that is not there.
  if (static_cast<std::size_t>(t.dst_segment) >= segments.size()) return false;
  const std::int32_t by = random.chance(50) ? 1 : -1;
  t.num_rows += by;
  segments[static_cast<std::size_t>(t.dst_segment)].num_rows += by;
  return true;
}

bool change_an_attend(RandomStream& random, Plan& plan) {
  RankPlan& rank = any_of(random, plan.ranks);
  if (rank.attends.empty()) return false;
  Attend& attend = any_of(random, rank.attends);
  const std::array numbers = {&attend.q_segment, &attend.k_segment,    &attend.heads.begin,
                              &attend.heads.end, &attend.slices.begin, &attend.slices.end};
  const auto chosen = static_cast<std::size_t>(random.between(0, 6));
  if (chosen < numbers.size()) {
    nudge(random, *numbers[chosen]);
  } else {
    attend.is_merging = !attend.is_merging;
  }
  return true;
}

std::vector<Step>& any_pass(RandomStream& random, Plan& plan) {
  RankPlan& rank = any_of(random, plan.ranks);
  return random.chance(50) ? rank.forward : rank.backward;
}

bool change_a_step(RandomStream& random, Plan& plan) {
  std::vector<Step>& steps = any_pass(random, plan);
  if (steps.empty()) return false;
  Step& step = any_of(random, steps);
  const auto last = static_cast<std::int32_t>(steps.size()) - 1;
  switch (random.between(0, 4)) {
    case 0:
      step.after[0] = random.between(-1, last);
      break;
    case 1:
      step.after[1] = random.between(-1, last);
      break;
    case 2:
      nudge(random, step.index);
      break;
    case 3:
      step.after = {-1, -1};
      break;
    default:
      step.kind = step.kind == StepKind::Attend ? StepKind::Exchange : StepKind::Attend;
  }
  return true;
}

bool change_an_exchange(RandomStream& random, Plan& plan) {
  if (plan.exchanges.empty()) return false;
  Exchange& exchange = any_of(random, plan.exchanges);
  const std::array numbers = {&exchange.segment, &exchange.heads.begin, &exchange.heads.end,
                              &exchange.hop, &exchange.stage};
  const std::int32_t chosen = random.between(0, 5);
  if (chosen == 0) {
    exchange.role = static_cast<Role>(random.between(0, kNumRoles - 1));
  } else {
    nudge(random, *numbers[static_cast<std::size_t>(chosen) - 1]);
  }
  return true;
}

bool change_a_segment(RandomStream& random, Plan& plan) {
  RankPlan& rank = any_of(random, plan.ranks);
  Segment& segment = any_of(random, (random.chance(70) ? rank.k : rank.q).segments);
  nudge(random, random.chance(80) ? segment.num_rows : segment.owner);
  return true;
}

/// The rows of two chunks change places, and nothing that is said about them does.
bool swap_chunks(RandomStream& random, Plan& plan) {
  const bool is_of_both = plan.placement_q == plan.placement_k;
  Placement& placement = random.chance(50) ? plan.placement_q : plan.placement_k;
  std::vector<std::int32_t> chunk_rank = placement.chunk_rank;
  if (!swap_two(random, chunk_rank)) return false;
  placement = placement_from_chunks(placement.num_rows, placement.chunk_size, placement.num_ranks,
                                    std::move(chunk_rank));
  if (is_of_both && random.chance(70)) plan.placement_q = plan.placement_k = placement;
  return true;
}

bool change_the_mask(RandomStream& random, Plan& plan) {
  if (plan.mask.slices.empty()) return false;
  BandSlice& slice = any_of(random, plan.mask.slices);
  const BandSlice before = slice;
  nudge(random, *any_bound(random, slice));
  const bool is_valid = slice.q0 >= 0 && slice.q0 <= slice.q1 && slice.q1 <= plan.mask.rows_q &&
                        slice.k0 >= 0 && slice.k0 <= slice.k1 && slice.k1 <= plan.mask.rows_k;
  const bool is_bounded =
      slice.d_min >= -kBandInfinity && slice.d_min <= slice.d_max && slice.d_max <= kBandInfinity;
  if (!is_valid || !is_bounded) slice = before;
  return is_valid && is_bounded;
}

bool change_a_figure(RandomStream& random, Plan& plan) {
  PlanReport& report = plan.report;
  constexpr double kMoreSeconds = 1e-6;  // beside a hundredth
  switch (random.between(0, 10)) {
    case 0:
      nudge(random, any_of(random, report.rank_area));
      break;
    case 1:
      nudge(random, any_of(random, report.rank_rows));
      break;
    case 2:
      nudge(random, any_of(random, report.remote_rows));
      break;
    case 3:
      nudge(random, any_of(random, report.pair_bytes));
      break;
    case 4:
      nudge(random, report.total_bytes);
      break;
    case 5:
      nudge(random, report.ring_bytes);
      break;
    case 6:
      nudge(random, any_of(random, random.chance(50) ? report.rank_memory : report.rank_runs));
      break;
    case 7:
      report.forward_seconds = 1.01 * report.forward_seconds + kMoreSeconds;
      break;
    case 8:
      report.backward_seconds = 0.99 * report.backward_seconds - kMoreSeconds;
      break;
    case 9:
      report.exposed_comm_seconds += random.chance(50) ? kMoreSeconds : -kMoreSeconds;
      break;
    default:
      report.balance *= 1.001;
  }
  return true;
}

bool change_the_config(RandomStream& random, Plan& plan) {
  if (random.chance(30)) {
    plan.config.devices_per_node = random.between(-1, 4);
  } else if (random.chance(50)) {
    plan.config.head_dim_v += 1;
  } else {
    plan.config.num_heads_kv *= 2;
    plan.config.num_heads_q *= 2;
  }
  return true;
}

struct Mutation {
  const char* name;
  bool (*change)(RandomStream&, Plan&);
};

constexpr Mutation kMutations[] = {
    {"a bound moved", move_a_bound},
    {"a bound moved", move_a_bound},
    {"a diagonal loosened", loosen_a_diagonal},
    {"a slice shifted", shift_a_slice},
    {"a slice dropped", drop_a_slice},
    {"a slice doubled", double_a_slice},
    {"a slice given away", give_a_slice_away},
    {"a slice split", split_a_slice},
    {"slices swapped",
     [](RandomStream& r, Plan& p) { return swap_two(r, any_of(r, p.ranks).slices); }},
    {"a transfer changed", change_a_transfer},
    {"a transfer changed", change_a_transfer},
    {"transfers' rows swapped", swap_rows_of_transfers},
    {"a transfer split", split_a_transfer},
    {"a transfer dropped or doubled",
     [](RandomStream& r, Plan& p) { return drop_or_double(r, p.transfers); }},
    {"transfers swapped", [](RandomStream& r, Plan& p) { return swap_two(r, p.transfers); }},
    {"more or fewer rows moved", move_more_or_less},
    {"an attention call changed", change_an_attend},
    {"an attention call dropped or doubled",
     [](RandomStream& r, Plan& p) { return drop_or_double(r, any_of(r, p.ranks).attends); }},
    {"attends swapped",
     [](RandomStream& r, Plan& p) { return swap_two(r, any_of(r, p.ranks).attends); }},
    {"a step changed", change_a_step},
    {"a step changed", change_a_step},
    {"a step dropped or doubled",
     [](RandomStream& r, Plan& p) { return drop_or_double(r, any_pass(r, p)); }},
    {"steps swapped", [](RandomStream& r, Plan& p) { return swap_two(r, any_pass(r, p)); }},
    {"an exchange changed", change_an_exchange},
    {"an exchange dropped or doubled",
     [](RandomStream& r, Plan& p) { return drop_or_double(r, p.exchanges); }},
    {"exchanges swapped", [](RandomStream& r, Plan& p) { return swap_two(r, p.exchanges); }},
    {"a segment changed", change_a_segment},
    {"chunks swapped", swap_chunks},
    {"the mask changed", change_the_mask},
    {"a figure changed", change_a_figure},
    {"the config changed", change_the_config},
    {"turns changed",
     [](RandomStream& r, Plan& p) {
       nudge(r, p.stages_in_flight);
       return true;
     }},
    {"head shares changed",
     [](RandomStream& r, Plan& p) {
       nudge(r, p.num_head_shares);
       return true;
     }},
};

}  // namespace

Plan small_random_plan(RandomStream& random) {
  if (random.chance(12)) return rectangle_plan();
  RandomMaskOptions options;
  options.is_square = random.chance(70);
  options.max_rows_q = options.max_rows_k = 28;
  options.max_slices = 6;
  const Mask mask = random_mask(random, options);
  PlanConfig config = random_config(random);
  config.num_ranks = random.between(1, 4);
  if (random.chance(40)) config.work = random.chance(70) ? WorkMode::Queries : WorkMode::Auto;
  if (random.chance(25)) config.work = WorkMode::Heads;
  const Placement q = random_placement(random, mask.rows_q, config.num_ranks);
  const Placement k =
      options.is_square ? q : random_placement(random, mask.rows_k, config.num_ranks);
  Plan plan = make_plan_on(mask, config, q, k);
  if (random.chance(60)) return plan;
  // Stages that take turns in memory, where some keep three quarters of what this one needs.
  config.work = WorkMode::Keys;
  config.head_shares = 0;
  config.min_stage_rows = 1;
  config.max_exchange_bytes = 3 * *std::ranges::max_element(plan.report.rank_memory) / 4;
  if (random.chance(50)) config.overlap_degree.reset();
  try {
    return make_plan_on(mask, config, q, k);
  } catch (const InvalidArgument&) {
    return plan;
  }
}

std::string mutate(RandomStream& random, Plan& plan) {
  std::string done;
  std::int32_t num_changes = random.chance(75) ? 1 : random.between(2, 3);
  for (int tries = 0; num_changes > 0 && tries < 100; ++tries) {
    const Mutation& mutation = any_of(random, kMutations);
    if (!mutation.change(random, plan)) continue;
    done += std::string(done.empty() ? "" : ", ") + mutation.name;
    --num_changes;
  }
  if (random.chance(60)) {
    renew_figures(plan);
  } else if (random.chance(90)) {
    plan.digest = plan_digest(plan);
  }
  return done;
}

MutantCounts judge_mutants(std::uint64_t seed, std::int64_t num_mutants) {
  constexpr std::int64_t kMutantsOfAPlan = 16;
  MutantCounts counts;
  Plan plan;
  for (std::int64_t i = 0; i < num_mutants; ++i) {
    RandomStream random(seed + static_cast<std::uint64_t>(i));
    if (i % kMutantsOfAPlan == 0) plan = small_random_plan(random);
    Plan mutant = plan;
    const std::string done = mutate(random, mutant);
    const std::string wrong = judge_plan(mutant);
    const std::vector<std::string> problems = check_plan(mutant);
    ++(wrong.empty() ? counts.num_right : counts.num_wrong);
    if (wrong.empty() == problems.empty()) {
      ++(wrong.empty() ? counts.num_accepted : counts.num_refused);
    } else if (counts.first_disagreement.empty()) {
      counts.first_disagreement =
          "seed " + std::to_string(seed) + ", mutant " + std::to_string(i) + " (" + done + "): ";
      counts.first_disagreement += wrong.empty() ? "refused though right: " + problems.front()
                                                 : "accepted though wrong: " + wrong;
    }
  }
  return counts;
}

}  // namespace magi::testing
