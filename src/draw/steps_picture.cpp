// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "draw/numbers.hpp"
#include "draw/pictures.hpp"
#include "draw/svg.hpp"
#include "plan/cost/flat.hpp"
#include "plan/cost/loads.hpp"

namespace magi::draw {
namespace {

constexpr std::int32_t kMostRanks = 8;
constexpr double kLeft = 24.0;
constexpr double kTop = 96.0;
constexpr double kBoxWidth = 150.0;
constexpr double kBoxHeight = 46.0;
constexpr double kLaneGap = 26.0;
constexpr double kColumnGap = 30.0;
constexpr double kRowHeight = 68.0;
constexpr double kColumnWidth = 2 * kBoxWidth + kLaneGap;
constexpr std::string_view kExchangeColour = "#fbe3b3";
constexpr std::string_view kAttentionColour = "#cfe3f5";

/// One pass of the ranks that are drawn. `rows[rank][step]` is the row of a step's box: below those
/// of the steps that it waits for and of the one before it in its lane. An exchange is of all
/// ranks, so its boxes stand in one row.
struct Pass {
  const Plan& plan;
  bool is_backward = false;
  std::vector<std::vector<std::int32_t>> rows;
  std::int32_t num_rows = 0;

  const std::vector<Step>& steps_of(std::size_t rank) const {
    return is_backward ? plan.ranks[rank].backward : plan.ranks[rank].forward;
  }
};

/// Moves the steps of one rank down to where they may stand. True if one moved.
bool lower_steps(Pass& pass, std::size_t rank, std::vector<std::int32_t>& exchange_rows) {
  const std::vector<Step>& steps = pass.steps_of(rank);
  std::vector<std::int32_t>& rows = pass.rows[rank];
  std::int32_t next_row[2] = {0, 0};  // by StepKind
  bool is_moved = false;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    std::int32_t& next = next_row[static_cast<std::size_t>(steps[i].kind)];
    std::int32_t row = std::max(rows[i], next);
    for (const std::int32_t before : steps[i].after) {
      if (before >= 0) row = std::max(row, rows[static_cast<std::size_t>(before)] + 1);
    }
    if (steps[i].kind == StepKind::Exchange) {
      std::int32_t& shared = exchange_rows[static_cast<std::size_t>(steps[i].index)];
      shared = row = std::max(row, shared);
    }
    is_moved = is_moved || row != rows[i];
    rows[i] = row;
    next = row + 1;
    pass.num_rows = std::max(pass.num_rows, next);
  }
  return is_moved;
}

Pass arrange(const Plan& plan, bool is_backward) {
  Pass pass{.plan = plan, .is_backward = is_backward};
  const std::size_t num_ranks = std::min<std::size_t>(plan.ranks.size(), kMostRanks);
  std::size_t num_steps = 0;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    pass.rows.emplace_back(pass.steps_of(rank).size(), 0);
    num_steps += pass.steps_of(rank).size();
  }
  std::vector<std::int32_t> exchange_rows(plan.exchanges.size(), 0);
  // Each round fixes at least one step more; ranks that disagree on the order would go on.
  bool is_moved = true;
  for (std::size_t round = 0; is_moved && round <= num_steps; ++round) {
    is_moved = false;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      is_moved = lower_steps(pass, rank, exchange_rows) || is_moved;
    }
  }
  return pass;
}

const char* role_text(Role role, bool is_backward) {
  switch (role) {
    case Role::KeysValues:
      return "k, v";
    case Role::Queries:
      return is_backward ? "q, dout" : "q";
    case Role::Results:
      return "out, lse";
    case Role::KeyGradients:
      return "dk, dv";
    default:
      return "dq";
  }
}

std::string heads_text(const Plan& plan, Range heads) {
  if (heads.size() == planner::heads_per_share(plan)) return "";
  return heads.size() == 1
             ? ", kv head " + std::to_string(heads.begin)
             : ", kv heads " + std::to_string(heads.begin) + " to " + std::to_string(heads.end - 1);
}

/// The lines of a step's box.
std::vector<std::string> lines_of(const Pass& pass, const planner::PlanLoads& loads,
                                  std::int32_t rank, const Step& step) {
  const Plan& plan = pass.plan;
  const auto index = static_cast<std::size_t>(step.index);
  if (step.kind == StepKind::Exchange) {
    const Exchange& exchange = plan.exchanges[index];
    const std::int64_t row_bytes = planner::bytes_per_row(plan.config, exchange, pass.is_backward);
    const auto line = [&](const char* way, std::int64_t rows) {
      return std::string(way) + grouped(rows) + " rows, " + bytes_text(rows * row_bytes);
    };
    const std::string segment = " segment " + std::to_string(exchange.segment);
    return {role_text(exchange.role, pass.is_backward) +
                std::string(is_returning(exchange.role) ? " of" : " to") + segment +
                heads_text(plan, exchange.heads),
            line("in ", loads.rows_in(rank, exchange)),
            line("out ", loads.rows_out(rank, exchange))};
  }
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  const Attend& attend = own.attends[index];
  const auto name = [](std::int32_t segment) {
    return segment == 0 ? std::string("own") : "segment " + std::to_string(segment);
  };
  return {"q " + name(attend.q_segment) + ", k " + name(attend.k_segment) +
              heads_text(plan, attend.heads),
          grouped(attend.slices.size()) + (attend.slices.size() == 1 ? " slice, " : " slices, ") +
              grouped(loads.area(rank, step.index)) + " pairs",
          pass.is_backward ? std::string(attend.is_merging ? "adds to" : "writes") + " dq; dk, dv"
          : attend.is_merging ? "merges into out, lse"
                              : "writes out, lse"};
}

Box box_of(const Pass& pass, std::int32_t rank, std::size_t step, double top) {
  const auto r = static_cast<std::size_t>(rank);
  const bool is_attend = pass.steps_of(r)[step].kind == StepKind::Attend;
  return {
      .x = kLeft + rank * (kColumnWidth + kColumnGap) + (is_attend ? kBoxWidth + kLaneGap : 0.0),
      .y = top + pass.rows[r][step] * kRowHeight,
      .width = kBoxWidth,
      .height = kBoxHeight};
}

/// Draws from the side of `from` that faces the lane of `to`, or from below, to its near side.
void draw_arrow(Svg& svg, const Box& from, const Box& to) {
  const bool is_right = to.x > from.x;
  const double x0 = is_right ? from.x + from.width : from.x;
  const double y0 = from.y + from.height / 2;
  const double x1 = is_right ? to.x : to.x + to.width;
  const double y1 = to.y + to.height / 2;
  const double tip = is_right ? -5.0 : 5.0;
  svg.line({x0, y0, x1 + tip, y1}, kMutedInk, 1.2);
  svg.path("M" + decimal(x1) + " " + decimal(y1) + "L" + decimal(x1 + 1.6 * tip) + " " +
               decimal(y1 - 4) + "L" + decimal(x1 + 1.6 * tip) + " " + decimal(y1 + 4) + "Z",
           kMutedInk);
}

void draw_rank(Svg& svg, const Pass& pass, const planner::PlanLoads& loads, std::int32_t rank,
               double top) {
  const std::vector<Step>& steps = pass.steps_of(static_cast<std::size_t>(rank));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Box box = box_of(pass, rank, i, top);
    for (const std::int32_t before : steps[i].after) {
      if (before < 0) continue;
      draw_arrow(svg, box_of(pass, rank, static_cast<std::size_t>(before), top), box);
    }
    const std::vector<std::string> lines = lines_of(pass, loads, rank, steps[i]);
    const bool is_exchange = steps[i].kind == StepKind::Exchange;
    const std::string stage = "stage " + std::to_string(stage_of(pass.plan, steps, steps[i]));
    svg.rect_with_tooltip(box, is_exchange ? kExchangeColour : kAttentionColour,
                          (is_exchange ? "exchange, " : "attend, ") + stage + ": " + lines[0]);
    for (std::size_t n = 0; n < lines.size(); ++n) {
      svg.text(box.x + 7, box.y + 14 + 13.0 * static_cast<double>(n), lines[n],
               {.size = 10.5, .is_bold = n == 0});
    }
  }
}

void draw_pass(Svg& svg, const Pass& pass, const planner::PlanLoads& loads, double top) {
  svg.text(kLeft, top - 14, pass.is_backward ? "backward" : "forward",
           {.size = 13, .is_bold = true});
  for (std::size_t rank = 0; rank < pass.rows.size(); ++rank) {
    draw_rank(svg, pass, loads, static_cast<std::int32_t>(rank), top);
  }
}

void draw_key(Svg& svg, double y) {
  svg.rect({.x = kLeft, .y = y, .width = 14, .height = 14}, kExchangeColour);
  svg.text(kLeft + 22, y + 11.5, "exchange of all ranks", {.size = 12});
  svg.rect({.x = kLeft + 170, .y = y, .width = 14, .height = 14}, kAttentionColour);
  svg.text(kLeft + 192, y + 11.5, "attend", {.size = 12});
  svg.text(kLeft + 250, y + 11.5,
           "an arrow leads to what waits; in a lane, steps go from top to bottom",
           {.size = 12, .colour = kMutedInk});
}

}  // namespace

std::string steps_picture(const Plan& plan, std::string_view title) {
  const planner::PlanLoads loads(plan);
  const Pass passes[] = {arrange(plan, false), arrange(plan, true)};
  const auto drawn = static_cast<double>(passes[0].rows.size());
  const double backward_top = kTop + passes[0].num_rows * kRowHeight + 34;
  const double bottom = backward_top + passes[1].num_rows * kRowHeight;
  std::string summary = "what each rank does in one layer, and what waits for what";
  if (plan.ranks.size() > passes[0].rows.size()) {
    summary += "; the first " + std::to_string(passes[0].rows.size()) + " of " +
               std::to_string(plan.ranks.size()) + " ranks";
  }
  Svg svg(2 * kLeft + std::max(2.0, drawn) * (kColumnWidth + kColumnGap) - kColumnGap, bottom + 36,
          title, summary);
  for (std::size_t rank = 0; rank < passes[0].rows.size(); ++rank) {
    const double x = kLeft + static_cast<double>(rank) * (kColumnWidth + kColumnGap);
    svg.text(x + kColumnWidth / 2, kTop - 14, "rank " + std::to_string(rank),
             {.size = 13, .anchor = Anchor::Middle, .is_bold = true});
    svg.line({x + kColumnWidth + kColumnGap / 2, kTop - 26, x + kColumnWidth + kColumnGap / 2,
              bottom - 12},
             rank + 1 < passes[0].rows.size() ? kRule : "#ffffff");
  }
  draw_pass(svg, passes[0], loads, kTop);
  draw_pass(svg, passes[1], loads, backward_top);
  draw_key(svg, bottom + 4);
  return std::move(svg).finish();
}

}  // namespace magi::draw
