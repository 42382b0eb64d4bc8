// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "draw/numbers.hpp"
#include "draw/pictures.hpp"
#include "draw/svg.hpp"
#include "plan/cost/loads.hpp"
#include "plan/cost/timeline.hpp"

namespace magi::draw {
namespace {

constexpr double kLeft = 84.0;
constexpr double kTop = 96.0;
constexpr std::size_t kMostRanks = 512;  // more are not drawn: a picture stays below 5 MB
constexpr double kPlotWidth = 700.0;
constexpr double kBarHeight = 14.0;
constexpr double kLane = 2 * kBarHeight + 12;
constexpr std::string_view kExchangeColour = "#e69f00";  // of keys and values
constexpr std::string_view kQueryColour = "#009e73";
constexpr std::string_view kResultColour = "#cc79a7";
constexpr std::string_view kAttentionColour = "#0072b2";

/// The bars that the timeline draws of a plan.
struct Timeline {
  const Plan& plan;
  planner::PlanLoads loads{plan};
  std::vector<planner::PassTimes> ranks = planner::predict_times(plan, loads, false);

  double end_seconds() const {
    const auto last = std::ranges::max_element(ranks, {}, &planner::PassTimes::end_ns);
    return static_cast<double>(last->end_ns) * 1e-9;
  }
};

/// The name of a step and the colour of its bar.
struct Look {
  const char* name;
  std::string_view colour;
};

Look look_of(const Plan& plan, const Step& step) {
  if (step.kind == StepKind::Attend) return {"attention", kAttentionColour};
  switch (plan.exchanges[static_cast<std::size_t>(step.index)].role) {
    case Role::Queries:
      return {"exchange of queries", kQueryColour};
    case Role::Results:
      return {"return of results", kResultColour};
    default:
      return {"exchange", kExchangeColour};
  }
}

/// Says in words which part of what an exchange brings to a rank crosses between nodes.
std::string crossing_text(const Timeline& timeline, std::int32_t rank, const Exchange& exchange) {
  const Plan& plan = timeline.plan;
  if (!has_nodes(plan.config)) return "";
  const planner::SegmentTraffic& moved =
      timeline.loads.traffic(rank, space_of(exchange.role), exchange.segment);
  const std::int64_t row_bytes = planner::bytes_per_row(plan.config, exchange, false);
  const bool is_return = is_returning(exchange.role);
  const auto bytes_in = [&](const planner::LinkTraffic& links) {
    return grouped((is_return ? links.rows_out : links.rows_in) * row_bytes);
  };
  return ", " + bytes_in(moved.network) + " from other nodes, " + bytes_in(moved.onward) +
         " handed on inside";
}

/// Says what a step moves or computes, in words.
std::string amount_text(const Timeline& timeline, std::int32_t rank, const Step& step) {
  const Plan& plan = timeline.plan;
  const auto index = static_cast<std::size_t>(step.index);
  if (step.kind == StepKind::Exchange) {
    const Exchange& exchange = plan.exchanges[index];
    return grouped(timeline.loads.rows_in(rank, exchange) *
                   planner::bytes_per_row(plan.config, exchange, false)) +
           " bytes in" + crossing_text(timeline, rank, exchange);
  }
  const std::int32_t group = plan.config.num_heads_q / plan.config.num_heads_kv;
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  return grouped(timeline.loads.area(rank, step.index) * own.attends[index].heads.size() * group) +
         " pairs times heads";
}

void draw_steps(Svg& svg, const Timeline& timeline, std::int32_t rank, double y, double scale) {
  const auto r = static_cast<std::size_t>(rank);
  const std::vector<Step>& steps = timeline.plan.ranks[r].forward;
  const bool has_stages = num_stages(timeline.plan) > 1;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const planner::StepTime& time = timeline.ranks[r].steps[i];
    if (time.end_ns == time.begin_ns) continue;
    const double begin = static_cast<double>(time.begin_ns) * 1e-9;
    const double end = static_cast<double>(time.end_ns) * 1e-9;
    const double width = (end - begin) * scale;
    const bool is_exchange = steps[i].kind == StepKind::Exchange;
    const auto [name, colour] = look_of(timeline.plan, steps[i]);
    const std::string stage = std::to_string(stage_of(timeline.plan, steps, steps[i]));
    const Box box{.x = kLeft + begin * scale,
                  .y = is_exchange ? y : y + kBarHeight + 2,
                  .width = std::max(width - 1.0, 0.5),
                  .height = kBarHeight};
    svg.rect_with_tooltip(box, colour,
                          name + (has_stages ? " of stage " + stage : "") + ": " +
                              seconds_text(begin) + " to " + seconds_text(end) + ", " +
                              amount_text(timeline, rank, steps[i]));
    if (!has_stages || width < 22.0) continue;
    svg.text(box.x + box.width / 2, box.y + 11, stage,
             {.size = 11, .anchor = Anchor::Middle, .colour = text_colour_on(colour)});
  }
}

void draw_axis(Svg& svg, double end, double bottom) {
  const double scale = end > 0.0 ? kPlotWidth / end : 0.0;
  const TextStyle number{.size = 12, .anchor = Anchor::Middle, .colour = kMutedInk};
  for (const double at : ticks(end, 6)) {
    const double x = kLeft + at * scale;
    svg.line({x, kTop - 5, x, bottom}, kRule);
    svg.text(x, kTop - 10, seconds_text(at), number);
  }
  svg.text(kLeft - 10, kTop - 10, "time", {.size = 12, .anchor = Anchor::End, .colour = kMutedInk});
  svg.line({kLeft + kPlotWidth, kTop - 5, kLeft + kPlotWidth, bottom}, kMutedInk);
  svg.text(kLeft + kPlotWidth, kTop - 10, seconds_text(end), number);
}

void draw_key(Svg& svg, double y, const Plan& plan) {
  const bool is_moving_queries = std::ranges::any_of(
      plan.exchanges, [](const Exchange& exchange) { return exchange.role == Role::Queries; });
  double x = kLeft;
  const auto entry = [&](std::string_view colour, std::string_view name, double width) {
    svg.rect({.x = x, .y = y, .width = 14, .height = 14}, colour);
    svg.text(x + 22, y + 11.5, name, {.size = 12});
    x += width;
  };
  entry(kExchangeColour, is_moving_queries ? "keys, values" : "exchanges", 104);
  if (is_moving_queries) {
    entry(kQueryColour, "queries", 84);
    entry(kResultColour, "results back", 104);
  }
  entry(kAttentionColour, "attention", 106);
  if (num_stages(plan) == 1) return;
  svg.text(x, y + 11.5, "numbers are stages", {.size = 12, .colour = kMutedInk});
}

/// A line between the ranks of neighbouring nodes, and each node's name where there is room.
void draw_nodes(Svg& svg, const PlanConfig& config, std::int32_t num_drawn) {
  if (!has_nodes(config)) return;
  for (std::int32_t first = 0; first < num_drawn; first += config.devices_per_node) {
    const double y = kTop + kLane * first;
    svg.line({24, y, kLeft + kPlotWidth, y}, kMutedInk);
    svg.text(24, y + 10, "node " + std::to_string(first / config.devices_per_node),
             {.size = 10, .colour = kMutedInk});
  }
}

}  // namespace

std::string timeline_picture(const Plan& plan, std::string_view title) {
  const Timeline timeline{plan};
  const double end = timeline.end_seconds();
  const double scale = end > 0.0 ? kPlotWidth / end : 0.0;
  const std::size_t num_drawn = std::min(plan.ranks.size(), kMostRanks);
  const double bottom = kTop + kLane * static_cast<double>(num_drawn);
  const std::int32_t stages = num_stages(plan);
  std::string summary = "one forward pass as the cost model predicts it: " + seconds_text(end) +
                        ", " + std::to_string(stages) + (stages == 1 ? " stage" : " stages");
  if (plan.stages_in_flight > 0) {
    summary += ", " + bytes_text(std::ranges::max(plan.report.rank_memory)) + " of exchange memory";
  }
  if (num_drawn < plan.ranks.size()) {
    summary += "; the first " + std::to_string(num_drawn) + " of " +
               std::to_string(plan.ranks.size()) + " ranks";
  }
  Svg svg(kLeft + kPlotWidth + 48, bottom + 48, title, summary);
  draw_axis(svg, end, bottom);
  for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(num_drawn); ++rank) {
    const double y = kTop + kLane * rank + 5;
    svg.text(kLeft - 10, y + kBarHeight + 5, "rank " + std::to_string(rank),
             {.size = 12, .anchor = Anchor::End});
    draw_steps(svg, timeline, rank, y, scale);
  }
  draw_nodes(svg, plan.config, static_cast<std::int32_t>(num_drawn));
  draw_key(svg, bottom + 18, plan);
  return std::move(svg).finish();
}

}  // namespace magi::draw
