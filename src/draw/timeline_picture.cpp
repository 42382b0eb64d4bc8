// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "draw/numbers.hpp"
#include "draw/pictures.hpp"
#include "draw/schedule.hpp"
#include "draw/svg.hpp"

namespace magi::draw {
namespace {

constexpr double kLeft = 84.0;
constexpr double kTop = 96.0;
constexpr double kPlotWidth = 700.0;
constexpr double kBarHeight = 14.0;
constexpr double kLane = 2 * kBarHeight + 12;
constexpr std::string_view kTransferColour = "#e69f00";
constexpr std::string_view kAttentionColour = "#0072b2";

struct Lane {
  double y = 0.0;
  double pixels_per_second = 0.0;
  std::string_view colour;
  const char* kind = "";
  const char* unit = "";
};

void draw_bars(Svg& svg, const std::vector<Bar>& bars, const Lane& lane) {
  for (const Bar& bar : bars) {
    const double width = (bar.end - bar.begin) * lane.pixels_per_second;
    const Box box{.x = kLeft + bar.begin * lane.pixels_per_second,
                  .y = lane.y,
                  .width = std::max(width - 1.0, 0.5),
                  .height = kBarHeight};
    svg.rect_with_tooltip(box, lane.colour,
                          std::string(lane.kind) + " of wave " + std::to_string(bar.wave) + ": " +
                              seconds_text(bar.begin) + " to " + seconds_text(bar.end) + ", " +
                              grouped(bar.amount) + " " + lane.unit);
    if (width < 22.0) continue;
    svg.text(box.x + box.width / 2, box.y + 11, std::to_string(bar.wave),
             {.size = 11, .anchor = Anchor::Middle, .colour = text_colour_on(lane.colour)});
  }
}

double end_of(const std::vector<RankSchedule>& schedules) {
  double end = 0.0;
  for (const RankSchedule& schedule : schedules) {
    for (const Bar& bar : schedule.transfers) end = std::max(end, bar.end);
    for (const Bar& bar : schedule.attention) end = std::max(end, bar.end);
  }
  return end;
}

void draw_axis(Svg& svg, double end, double bottom) {
  const double scale = end > 0.0 ? kPlotWidth / end : 0.0;
  const TextStyle number{.size = 12, .anchor = Anchor::Middle, .colour = kMutedInk};
  for (const double at : ticks(end, 6)) {
    const double x = kLeft + at * scale;
    svg.line({x, kTop - 5, x, bottom}, kRule);
    svg.text(x, kTop - 10, seconds_text(at), number);
  }
  svg.line({kLeft + kPlotWidth, kTop - 5, kLeft + kPlotWidth, bottom}, kMutedInk);
  svg.text(kLeft + kPlotWidth, kTop - 10, seconds_text(end), number);
}

void draw_key(Svg& svg, double y) {
  svg.rect({.x = kLeft, .y = y, .width = 14, .height = 14}, kTransferColour);
  svg.text(kLeft + 22, y + 11.5, "transfers", {.size = 12});
  svg.rect({.x = kLeft + 104, .y = y, .width = 14, .height = 14}, kAttentionColour);
  svg.text(kLeft + 126, y + 11.5, "attention", {.size = 12});
  svg.text(kLeft + 210, y + 11.5, "numbers are waves", {.size = 12, .colour = kMutedInk});
}

}  // namespace

std::string timeline_picture(const Plan& plan, std::string_view title) {
  const std::vector<RankSchedule> schedules = forward_schedule(plan);
  const double end = end_of(schedules);
  const double scale = end > 0.0 ? kPlotWidth / end : 0.0;
  const double bottom = kTop + kLane * static_cast<double>(schedules.size());
  const std::string summary =
      "one forward call as the cost model predicts it: " + seconds_text(end) + ", " +
      std::to_string(plan.num_waves) + (plan.num_waves == 1 ? " wave" : " waves");
  Svg svg(kLeft + kPlotWidth + 48, bottom + 48, title, summary);
  svg.text(24, 28, title, {.size = 16, .is_bold = true});
  svg.text(24, 47, summary, {.size = 12, .colour = kMutedInk});
  draw_axis(svg, end, bottom);
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    const double y = kTop + kLane * static_cast<double>(rank) + 5;
    svg.text(kLeft - 10, y + kBarHeight + 5, "rank " + std::to_string(rank),
             {.size = 12, .anchor = Anchor::End});
    draw_bars(svg, schedules[rank].transfers,
              {.y = y,
               .pixels_per_second = scale,
               .colour = kTransferColour,
               .kind = "transfers",
               .unit = "bytes in"});
    draw_bars(svg, schedules[rank].attention,
              {.y = y + kBarHeight + 2,
               .pixels_per_second = scale,
               .colour = kAttentionColour,
               .kind = "attention",
               .unit = "pairs times heads"});
  }
  draw_key(svg, bottom + 18);
  return std::move(svg).finish();
}

}  // namespace magi::draw
