// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "draw/numbers.hpp"
#include "draw/pictures.hpp"
#include "draw/svg.hpp"

namespace magi::draw {
namespace {

constexpr double kLeft = 96.0;
constexpr double kTop = 124.0;
constexpr std::int32_t kMostNumberedRanks = 12;

double cell_side(std::int32_t num_ranks) {
  return num_ranks <= kMostNumberedRanks ? 62.0 : std::max(640.0 / num_ranks, 3.0);
}

std::int64_t bytes_between(const Plan& plan, std::int32_t src, std::int32_t dst) {
  const std::int64_t ranks = plan.config.num_ranks;
  return plan.report.pair_bytes[static_cast<std::size_t>(src * ranks + dst)];
}

/// Every how many ranks a label fits.
std::int32_t label_step(std::int32_t num_ranks) {
  std::int32_t step = 1;
  while (step * cell_side(num_ranks) < 18.0) step *= 2;
  return step;
}

void draw_cells(Svg& svg, const Plan& plan) {
  const std::int32_t ranks = plan.config.num_ranks;
  const double side = cell_side(ranks);
  const double gap = side > 8 ? 2.0 : 0.0;
  const std::int64_t most = std::max<std::int64_t>(
      1, *std::max_element(plan.report.pair_bytes.begin(), plan.report.pair_bytes.end()));
  for (std::int32_t src = 0; src < ranks; ++src) {
    for (std::int32_t dst = 0; dst < ranks; ++dst) {
      const std::int64_t bytes = bytes_between(plan, src, dst);
      const std::string fill =
          src == dst ? std::string("#e4e7eb")
                     : scale_colour(static_cast<double>(bytes) / static_cast<double>(most));
      const Box box{.x = kLeft + dst * side,
                    .y = kTop + src * side,
                    .width = side - gap,
                    .height = side - gap};
      svg.rect_with_tooltip(box, fill,
                            "rank " + std::to_string(src) + " to rank " + std::to_string(dst) +
                                ": " + grouped(bytes) + " bytes");
      if (ranks > kMostNumberedRanks || src == dst) continue;
      svg.text(box.x + box.width / 2, box.y + box.height / 2 + 4, bytes_text(bytes),
               {.size = 12, .anchor = Anchor::Middle, .colour = text_colour_on(fill)});
    }
  }
}

void draw_totals(Svg& svg, const Plan& plan) {
  const std::int32_t ranks = plan.config.num_ranks;
  const double side = cell_side(ranks);
  const TextStyle end{.size = 12, .anchor = Anchor::End};
  const TextStyle middle{.size = 12, .anchor = Anchor::Middle};
  const double right = kLeft + ranks * side;
  const double bottom = kTop + ranks * side;
  svg.text(right + 84, kTop - 12, "sent", {.size = 12, .anchor = Anchor::End, .is_bold = true});
  for (std::int32_t rank = 0; rank < ranks; rank += label_step(ranks)) {
    std::int64_t sent = 0;
    std::int64_t received = 0;
    for (std::int32_t peer = 0; peer < ranks; ++peer) {
      sent += bytes_between(plan, rank, peer);
      received += bytes_between(plan, peer, rank);
    }
    const double centre = side * (rank + 0.5);
    svg.text(kLeft - 12, kTop + centre + 4, std::to_string(rank), end);
    svg.text(kLeft + centre - 1, kTop - 12, std::to_string(rank), middle);
    svg.text(right + 84, kTop + centre + 4, bytes_text(sent), end);
    if (ranks <= kMostNumberedRanks) {
      svg.text(kLeft + centre - 1, bottom + 20, bytes_text(received), middle);
    }
  }
  if (ranks <= kMostNumberedRanks) {
    svg.text(kLeft - 12, bottom + 20, "received",
             {.size = 12, .anchor = Anchor::End, .is_bold = true});
  }
  svg.text(kLeft, kTop - 32, "to rank", {.size = 12, .is_bold = true});
  svg.text(kLeft - 12, kTop - 12, "from rank",
           {.size = 12, .anchor = Anchor::End, .is_bold = true});
}

/// Bars of what this plan moves, its lower bound and a ring, on one scale.
void draw_comparison(Svg& svg, const Plan& plan, double y) {
  struct Row {
    const char* name;
    std::int64_t bytes;
    std::string_view colour;
  };
  const PlanReport& report = plan.report;
  const Row rows[] = {{"this plan", report.total_bytes, "#3182bd"},
                      {"lower bound", report.lower_bound_bytes, "#9ecae1"},
                      {"ring / all-gather", report.ring_bytes, "#9aa5b1"}};
  double most = 1.0;
  for (const Row& row : rows) most = std::max(most, static_cast<double>(row.bytes));
  for (const Row& row : rows) {
    svg.text(kLeft + 24, y + 12, row.name, {.size = 12, .anchor = Anchor::End});
    const double width = 170.0 * static_cast<double>(row.bytes) / most;
    svg.rect({.x = kLeft + 34, .y = y, .width = std::max(width, 1.0), .height = 16}, row.colour);
    svg.text(kLeft + 42 + width, y + 12, bytes_text(row.bytes), {.size = 12});
    y += 22;
  }
}

}  // namespace

std::string traffic_picture(const Plan& plan, std::string_view title) {
  const std::int32_t ranks = plan.config.num_ranks;
  const double side = cell_side(ranks) * ranks;
  const double bars_top = kTop + side + 40;
  const std::string summary =
      "bytes of keys and values in one forward call: " + grouped(plan.report.total_bytes) + " (" +
      percent_text(static_cast<double>(plan.report.total_bytes),
                   static_cast<double>(plan.report.ring_bytes)) +
      " of a ring)";
  Svg svg(std::max(kLeft + side + 108, 500.0), bars_top + 78, title, summary);
  svg.text(24, 28, title, {.size = 16, .is_bold = true});
  svg.text(24, 47, summary, {.size = 12, .colour = kMutedInk});
  draw_cells(svg, plan);
  draw_totals(svg, plan);
  draw_comparison(svg, plan, bars_top);
  return std::move(svg).finish();
}

}  // namespace magi::draw
