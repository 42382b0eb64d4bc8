// SPDX-License-Identifier: Apache-2.0
#include "magi/plan.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/math.hpp"
#include "base/words.hpp"
#include "plan/cost/even_step.hpp"
#include "plan/cost/flat.hpp"
#include "plan/cost/report.hpp"
#include "plan/cost/timeline.hpp"
#include "plan/cost/walked_tiles.hpp"
#include "plan/place_rows.hpp"
#include "plan/placement/automatic.hpp"
#include "plan/tables/layout.hpp"
#include "plan/tables/needs.hpp"
#include "plan/tables/ranks.hpp"
#include "plan/tables/stages.hpp"
#include "plan/travel/bounded.hpp"
#include "plan/travel/fastest.hpp"
#include "plan/travel/heads.hpp"
#include "plan/travel/queries.hpp"
#include "plan/value/config.hpp"
#include "plan/value/hops.hpp"

// Planning: a mask and a config become the placement and what each rank does. README.md tells the
// way from one to the other; this file walks it.
namespace magi {
namespace {

bool is_sharing_placement(const Mask& mask, const PlanConfig& config) {
  return !config.placement_k && mask.rows_q == mask.rows_k;
}

using planner::PlanLoads;
using planner::PlanWithLoads;

/// Ranks and transfers for the degree asked for, or for the one that the cost model prefers. Each
/// stage has memory of its own.
PlanLoads build_unbounded(const planner::Needs& needs, const planner::Layout& layout_q,
                          const planner::Layout& layout_k, Plan& plan) {
  const auto build_ranks = [&](std::int32_t degree) {
    const planner::StageShape shape = planner::shape_stages(plan.config, degree, needs.remote_rows);
    planner::build_ranks({needs, layout_q, layout_k, shape, plan.config}, plan);
  };
  const auto build = [&](std::int32_t degree) {
    build_ranks(degree);
    planner::choose_hops(plan);
  };
  build(plan.config.overlap_degree.value_or(0));
  PlanLoads loads(plan);
  if (plan.config.overlap_degree) return loads;
  const std::int32_t degree = planner::choose_degree(plan, loads);
  if (plan.config.work == WorkMode::Auto) {
    // choose_degree weighs the forward. Plans that move queries or share heads, with which this one
    // is compared, have the degree of the least time of both passes, so it gets that too.
    return planner::build_fastest(plan, build, {degree, 0, 1, 2, 4, 8});
  }
  if (degree == 0) return loads;
  if (degree > 1 && !planner::is_by_heads(plan.config)) {
    build(degree);
    return PlanLoads(plan);
  }
  // With one stage, or stages by heads, rows go to one segment as they do with degree 0: what they
  // cross and how many they are has been found.
  const std::int32_t hop = plan.exchanges.front().hop;
  build_ranks(degree);
  for (Exchange& exchange : plan.exchanges) exchange.hop = hop;
  loads.count_areas(plan);
  return loads;
}

/// The same, of stages that take turns in memory where the bound asks for it.
PlanLoads build_best(const planner::Needs& needs, const planner::Layout& layout_q,
                     const planner::Layout& layout_k, Plan& plan) {
  const auto build = [&](const planner::StageShape& shape) {
    planner::build_ranks({needs, layout_q, layout_k, shape, plan.config}, plan);
    planner::choose_hops(plan);
  };
  return planner::build_bounded(plan, build_unbounded(needs, layout_q, layout_k, plan), build,
                                needs.remote_rows);
}

/// The way the work of a plan is shared out.
struct Way {
  bool is_moving_queries = false;
  std::int32_t num_head_shares = 1;  ///< above 1: queries move all the same
};

/// Ranks and transfers; the placements must be in the plan.
PlanLoads build_tables(Plan& plan, const Way& way) {
  if (way.num_head_shares > 1) {
    return planner::plan_heads(way.num_head_shares, plan);
  }
  const bool is_shared = plan.placement_q == plan.placement_k;
  const planner::Layout layout_q = planner::make_layout(plan.placement_q);
  const planner::Layout layout_own_k =
      is_shared ? planner::Layout{} : planner::make_layout(plan.placement_k);
  const planner::Layout& layout_k = is_shared ? layout_q : layout_own_k;
  if (way.is_moving_queries) {
    return planner::plan_queries(layout_q, layout_k, plan);
  }
  return build_best(planner::find_needs(plan.mask, layout_q, layout_k), layout_q, layout_k, plan);
}

/// Everything after the placements, which must be in the plan.
PlanWithLoads finish_plan(Plan plan, const Way& way) {
  PlanLoads loads = build_tables(plan, way);
  plan.report = planner::make_report(plan, loads);
  return {std::move(plan), std::move(loads)};
}

Placement place_of_keys(const Mask& mask, const PlanConfig& config, const Placement& placement_q) {
  if (is_sharing_placement(mask, config)) return placement_q;
  return planner::place_keys(mask, placement_q, config.placement_k.value_or(config.placement));
}

std::int64_t exchange_bytes(const Plan& plan) {
  return *std::ranges::max_element(plan.report.rank_memory);
}

double step_seconds(const Plan& plan) {
  return plan.report.forward_seconds + plan.report.backward_seconds;
}

/// Bytes above the bound of exchange memory, which come first, and seconds of a step.
std::pair<std::int64_t, double> rate(const Plan& plan) {
  return {planner::bytes_above_bound(plan.config, exchange_bytes(plan)), step_seconds(plan)};
}

void keep_faster(PlanWithLoads other, std::optional<PlanWithLoads>& kept) {
  if (!kept || rate(other.plan) < rate(kept->plan)) kept = std::move(other);
}

/// Throws InvalidArgument where the fastest plan does not keep a bound that was asked for.
void require_bound(const Plan& plan) {
  if (!planner::is_above_bound(plan.config, exchange_bytes(plan))) return;
  std::string allowed =
      "0 (no bound), or for this mask and config at least " + std::to_string(exchange_bytes(plan));
  if (plan.config.overlap_degree.value_or(planner::kStagesInFlight + 1) <=
      planner::kStagesInFlight) {
    allowed += "; stages that take turns need an overlap_degree of 3 or more, or none";
  }
  throw invalid("max_exchange_bytes", *plan.config.max_exchange_bytes, allowed);
}

/// Plans a mask in several ways; rows are placed once for all ways that place them alike.
class PlacedMask {
 public:
  PlacedMask(const Mask& mask, const PlanConfig& config) : mask_(mask), config_(config) {}

  PlanWithLoads plan(const PlacementConfig& placement, const Way& way) {
    PlacedRows& rows = rows_of(placement);
    const bool is_keys = !way.is_moving_queries && way.num_head_shares == 1;
    if (is_keys && rows.keys) return *std::exchange(rows.keys, std::nullopt);
    return finish_on(rows.q, rows.k, way);
  }
  /// Keys alone, with chunks exchanged between ranks for the sake of the step's time.
  PlanWithLoads plan_for_step(const PlacementConfig& placement) {
    const Placement rows = planner::place_for_step(mask_, config_, rows_of(placement).q);
    return finish_on(rows, rows, {});
  }

 private:
  struct PlacedRows {
    PlacementConfig config;
    Placement q = {};
    Placement k = {};
    std::optional<PlanWithLoads> keys = {};  ///< their plan of keys alone, if made, until taken
  };

  PlanWithLoads finish_on(const Placement& q, const Placement& k, const Way& way) const {
    return finish_plan({.mask = mask_, .config = config_, .placement_q = q, .placement_k = k}, way);
  }

  PlacedRows& rows_of(const PlacementConfig& placement) {
    const auto known = std::ranges::find(known_, placement, &PlacedRows::config);
    if (known != known_.end()) return *known;
    known_.push_back({.config = placement});
    PlacedRows& rows = known_.back();
    keep_fastest(planner::asks_for_runs(config_) ? planner::placements_for_runs(mask_, config_)
                                                 : placements_for_nodes(placement),
                 rows);
    if (may_cut_chunks(placement)) cut_chunks(placement, rows);
    return rows;
  }

  /// Whether chunks may be smaller than the rule makes them. Work that moves is even with any.
  bool may_cut_chunks(const PlacementConfig& how) const {
    constexpr std::int32_t kMostRanks = 4;
    const bool is_keys = config_.work == WorkMode::Keys || config_.work == WorkMode::Auto;
    return is_keys && how.algorithm == PlacementAlgorithm::Auto && !how.chunk_size &&
           config_.num_ranks > 1 && config_.num_ranks <= kMostRanks && !has_nodes(config_) &&
           !planner::asks_for_runs(config_);
  }

  /// Halves uneven chunks once or twice, exchanges some between ranks, and keeps the placement with
  /// the fastest plan that moves keys alone, if kernels walk fewer tiles too: small pieces cost
  /// more than their pairs. Masks of blocks need chunks of whole blocks.
  void cut_chunks(PlacementConfig how, PlacedRows& rows) const {
    constexpr std::int32_t kLeastChunk = 512, kBlock = 256;
    constexpr double kEven = 1.004, kFewerTiles = 0.994;
    const Placement first = rows.q;
    const auto is_fit = [&](std::int32_t chunk) {
      if (chunk < kLeastChunk || chunk % kBlock != 0) return false;
      const std::int64_t together = std::int64_t{chunk} * config_.num_ranks;
      return how.uneven_shard ||
             align_up<std::int64_t>(mask_.rows_q, together) == first.num_rows;  // padded alike
    };
    if (!is_fit(first.chunk_size / 2)) return;
    rows.keys = finish_on(rows.q, rows.k, {});
    auto tiles = static_cast<double>(planner::most_walked_tiles(rows.keys->plan));
    const auto keep_better = [&](const Placement& q) {
      PlanWithLoads other = finish_on(q, place_of_keys(mask_, config_, q), {});
      const auto walked = static_cast<double>(planner::most_walked_tiles(other.plan));
      if (walked >= kFewerTiles * tiles || rate(rows.keys->plan) <= rate(other.plan)) return;
      rows.keys = std::move(other);
      tiles = walked;
    };
    for (const std::int32_t parts : {2, 4}) {
      how.chunk_size = first.chunk_size / parts;
      if (!is_fit(*how.chunk_size) || rows.keys->plan.report.balance <= kEven) break;
      const Placement q = place(mask_, config_.num_ranks, how);
      keep_better(q);
      if (!is_sharing_placement(mask_, config_)) continue;
      keep_better(planner::place_for_step(mask_, config_, q, planner::kFewSwapsPerChunk));
    }
    rows.q = rows.keys->plan.placement_q;
    rows.k = rows.keys->plan.placement_k;
  }

  /// The placement that was asked for or, over nodes, many to choose from: less even ones may move
  /// less.
  std::vector<Placement> placements_for_nodes(PlacementConfig how) const {
    const std::int32_t num_ranks = config_.num_ranks;
    const NodeShape nodes{config_.devices_per_node, crossing_price(config_.cost)};
    if (how.algorithm != PlacementAlgorithm::Auto || !has_nodes(config_)) {
      return {place(mask_, num_ranks, how, nodes)};
    }
    how.algorithm = PlacementAlgorithm::SequentialSelect;
    const Placement like = place(mask_, num_ranks, how, nodes);
    const ChunkTable table = make_chunk_table(mask_, like.num_rows, like.chunk_size);
    const PlacementLimits limits =
        placement_limits(like.num_chunks(), num_ranks, how.token_tolerance);
    std::vector<Placement> found;
    for (std::vector<std::int32_t>& chunk_rank : place_to_choose(table, limits, nodes)) {
      found.push_back(
          placement_from_chunks(like.num_rows, like.chunk_size, num_ranks, std::move(chunk_rank)));
    }
    return found;
  }

  /// Keeps the placement with the fastest plan that moves keys alone; an only one is not planned.
  void keep_fastest(const std::vector<Placement>& choices, PlacedRows& rows) const {
    rows.q = choices.front();
    rows.k = place_of_keys(mask_, config_, rows.q);
    if (choices.size() == 1) return;
    for (const Placement& q : choices) {
      keep_faster(finish_on(q, place_of_keys(mask_, config_, q), {}), rows.keys);
    }
    rows.q = rows.keys->plan.placement_q;
    rows.k = rows.keys->plan.placement_k;
  }

  const Mask& mask_;
  const PlanConfig& config_;
  std::vector<PlacedRows> known_;  ///< two at most
};

/// The ways that a config allows, first the one to keep where others are not faster. Shares are
/// tried from small to large. A share has `share_rows` rows at most, padding included.
std::vector<Way> ways_of(const PlanConfig& config, std::int64_t share_rows) {
  const bool is_auto = config.work == WorkMode::Auto;
  const bool may_move = config.num_ranks <= planner::kMostRanksMovingQueries;
  std::vector<Way> ways;
  if (config.work == WorkMode::Keys || is_auto) ways.push_back({});
  if (config.work == WorkMode::Queries || (is_auto && may_move)) {
    ways.push_back({.is_moving_queries = true});
  }
  if (is_auto || config.work == WorkMode::Heads) {
    for (const std::int32_t count : planner::possible_shares(config)) {
      if (is_auto && share_rows * count > kMaxRows) continue;
      ways.push_back({.is_moving_queries = true, .num_head_shares = count});
    }
  }
  // One share is that of all heads.
  if (ways.empty()) ways.push_back({.is_moving_queries = true});
  return ways;
}

/// Whether a search shares out the pairs. Areas are then even in any placement, and rows in order
/// have the most neighbours at home.
bool has_search(const Way& way, const PlanConfig& config) {
  const std::int32_t num_groups = config.num_ranks / way.num_head_shares;
  return way.is_moving_queries && num_groups <= planner::kMostRanksMovingQueries;
}

bool is_placement_open(const PlanConfig& config) {
  return config.placement.algorithm == PlacementAlgorithm::Auto;
}

/// Whether rows may be placed for the step's time.
bool may_place_for_step(const Mask& mask, const PlanConfig& config) {
  return is_placement_open(config) && config.num_ranks > 1 &&
         config.num_ranks <= planner::kMostRanksMovingQueries && !has_nodes(config) &&
         !planner::asks_for_runs(config) && is_sharing_placement(mask, config);
}

/// The placements to try for a way, first the one to keep where others are not faster.
std::vector<PlacementConfig> placements_of(const Way& way, const PlanConfig& config) {
  if (!is_placement_open(config) || !has_search(way, config) || planner::asks_for_runs(config)) {
    return {config.placement};
  }
  PlacementConfig in_order = config.placement;
  in_order.algorithm = PlacementAlgorithm::SequentialSelect;
  const bool is_trying_both = config.work == WorkMode::Auto && way.num_head_shares == 1;
  if (is_trying_both) return {in_order, config.placement};
  return {in_order};
}

/// The ways that a choice plans beside keys alone: queries, where keys leave the work uneven, and
/// heads in as many shares as may be, on all ranks and within a node.
std::vector<PlanConfig> other_choices(const Plan& keys) {
  constexpr double kUneven = 1.25;
  PlanConfig config = keys.config;
  std::vector<PlanConfig> choices;
  config.work = WorkMode::Queries;
  const bool may_move = config.num_ranks <= planner::kMostRanksMovingQueries;
  if (may_move && keys.report.balance > kUneven) choices.push_back(config);
  config.work = WorkMode::Heads;
  std::int32_t most = 0;
  std::int32_t most_in_node = 0;
  for (const std::int32_t count : planner::possible_shares(config)) {
    // Padding adds less than there are rows.
    if (std::int64_t{2} * std::max(keys.mask.rows_q, keys.mask.rows_k) * count > kMaxRows) break;
    most = count;
    if (has_nodes(config) && config.devices_per_node % count == 0) most_in_node = count;
  }
  for (const std::int32_t count : {most, most_in_node}) {
    config.head_shares = count;
    if (count > 0 && (choices.empty() || choices.back() != config)) choices.push_back(config);
  }
  return choices;
}

/// Plans keys alone. Where another choice could gain enough, or keys do not keep the bound of
/// memory that was asked for, keys are planned over rows placed for the step's time as well, if
/// `may_place`, and the other choices; each without a long search.
template <typename MakePlan>
PlanWithLoads make_chosen(const Mask& mask, PlanConfig config, bool may_place,
                          const MakePlan& make) {
  config.work = WorkMode::Keys;
  std::optional<PlanWithLoads> kept = make(config);
  const bool keeps_bound = !planner::is_above_bound(config, exchange_bytes(kept->plan));
  if (keeps_bound && planner::possible_gain(kept->plan) == 0.0) return *std::move(kept);
  const double keys_seconds = step_seconds(kept->plan);
  const std::vector<PlanConfig> choices = other_choices(kept->plan);
  if (may_place) {
    const Placement rows =
        planner::place_for_step(mask, config, kept->plan.placement_q, planner::kFewSwapsPerChunk);
    keep_faster(
        finish_plan({.mask = mask, .config = config, .placement_q = rows, .placement_k = rows}, {}),
        kept);
  }
  for (const PlanConfig& choice : choices) keep_faster(make(choice), kept);
  kept->plan.digest = plan_digest(kept->plan);
  log(LogLevel::Info, "plan", [&] {
    const auto us = [](double seconds) { return std::to_string(std::llround(1e6 * seconds)); };
    return std::string("chose what travels: ") + work_name(kept->plan.config.work) + ", " +
           us(step_seconds(kept->plan)) + " us a step; keys alone as rows are placed at first " +
           us(keys_seconds) + " us";
  });
  return *std::move(kept);
}

/// Does what make_plan_on does.
PlanWithLoads make_on(const Mask& mask, const PlanConfig& config, const Placement& placement_q,
                      const Placement& placement_k) {
  planner::validate_config(config);
  planner::validate_sizes(mask, config);
  planner::validate_placement(placement_q, "placement_q", mask.rows_q, config.num_ranks);
  planner::validate_placement(placement_k, "placement_k", mask.rows_k, config.num_ranks);
  planner::require_few_runs(mask, config, {placement_q});
  const std::int64_t share_rows =
      std::max(planner::rows_per_share(placement_q), planner::rows_per_share(placement_k));
  std::optional<PlanWithLoads> kept;
  for (const Way& way : ways_of(config, share_rows)) {
    keep_faster(finish_plan({.mask = mask,
                             .config = config,
                             .placement_q = placement_q,
                             .placement_k = placement_k},
                            way),
                kept);
  }
  kept->plan.digest = plan_digest(kept->plan);
  return *std::move(kept);
}

void log_plan(const Plan& plan) noexcept {
  log(LogLevel::Debug, "plan", [&] {
    return "made plan " + hex(plan.digest) + ": " + counted(plan.mask.rows_q, "row") + " on " +
           counted(plan.config.num_ranks, "rank") + " in chunks of " +
           std::to_string(plan.placement_q.chunk_size) + ", " + counted(num_stages(plan), "stage") +
           ", " + counted(plan.report.total_bytes, "byte") + " sent in a forward pass, balance " +
           std::to_string(plan.report.balance);
  });
}

}  // namespace

planner::PlanWithLoads planner::make_plan_with_loads(const Mask& mask, const PlanConfig& config) {
  if (config.work == WorkMode::Chosen) {
    return make_chosen(mask, config, may_place_for_step(mask, config),
                       [&](const PlanConfig& one) { return make_plan_with_loads(mask, one); });
  }
  planner::validate_config(config);
  planner::validate_sizes(mask, config);
  // Padding adds less than there are rows.
  const std::int64_t share_rows = std::int64_t{2} * std::max(mask.rows_q, mask.rows_k);
  PlacedMask placed(mask, config);
  std::optional<PlanWithLoads> kept;
  if (config.work == WorkMode::Auto && may_place_for_step(mask, config)) {
    keep_faster(placed.plan_for_step(config.placement), kept);
  }
  for (const Way& way : ways_of(config, share_rows)) {
    for (const PlacementConfig& placement : placements_of(way, config)) {
      keep_faster(placed.plan(placement, way), kept);
    }
  }
  kept->plan.digest = plan_digest(kept->plan);
  return *std::move(kept);
}

Plan make_plan(const Mask& mask, const PlanConfig& config) {
  Plan plan = planner::make_plan_with_loads(mask, config).plan;
  require_bound(plan);
  log_plan(plan);
  return plan;
}

Plan make_plan_on(const Mask& mask, const PlanConfig& config, const Placement& placement_q,
                  const Placement& placement_k) {
  const auto make = [&](const PlanConfig& one) {
    return make_on(mask, one, placement_q, placement_k);
  };
  Plan plan =
      (config.work == WorkMode::Chosen ? make_chosen(mask, config, false, make) : make(config))
          .plan;
  require_bound(plan);
  log_plan(plan);
  return plan;
}

}  // namespace magi
