// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <tuple>

#include "bench/distributed/dist_bench.hpp"
#include "draw/numbers.hpp"
#include "draw/svg.hpp"

namespace magi::cli {
namespace {

using Masks = std::vector<const DistCell*>;  ///< cells of one number of ranks and tokens

constexpr double kBar = 13.0;
constexpr double kGap = 30.0;
constexpr double kHeight = 240.0;
constexpr double kLeft = 48.0;
constexpr double kTop = 78.0;
constexpr double kTopShare = 1.1;  ///< bars that beat the kernel alone end here

double y_of(double share) {
  return kTop + kHeight * (1.0 - std::min(share, kTopShare) / kTopShare);
}

/// Sides that any of the cells has, but for the kernel alone.
std::vector<DistSide> sides_of(const Masks& cells) {
  std::vector<DistSide> sides;
  for (const DistSide side : kDistSides) {
    const auto is_there = [&](const DistCell* cell) {
      return cell->sides[static_cast<std::size_t>(side)].is_there;
    };
    if (side != DistSide::Alone && std::ranges::any_of(cells, is_there)) sides.push_back(side);
  }
  return sides;
}

std::string colour_of(DistSide side) {
  return draw::rank_colour(static_cast<std::int32_t>(side) - 1,
                           static_cast<std::int32_t>(kDistSides.size()) - 1);
}

void draw_axes(draw::Svg& svg, const std::vector<DistSide>& sides, double width) {
  double x = kLeft;
  for (const DistSide side : sides) {
    const std::string name = dist_side_name(side);
    svg.rect({.x = x, .y = 52, .width = 11, .height = 11}, colour_of(side));
    svg.text(x + 16, 62, name, {.size = 12});
    x += 34 + 7.5 * static_cast<double>(name.size());
  }
  for (int tick = 0; tick <= 5; ++tick) {
    const double share = 0.2 * tick;
    svg.line({kLeft, y_of(share), width - 12, y_of(share)}, draw::kRule);
    svg.text(kLeft - 8, y_of(share) + 4, draw::decimal(share, 1),
             {.size = 12, .anchor = draw::Anchor::End, .colour = draw::kMutedInk});
  }
}

std::string picture(const DistBenchOptions& options, const Masks& cells, std::size_t pass) {
  const std::vector<DistSide> sides = sides_of(cells);
  const double group = kBar * static_cast<double>(sides.size()) + kGap;
  const double step = std::max(group, 132.0);  // names of masks stand side by side
  const double width = std::max(kLeft + step * static_cast<double>(cells.size()) + 12.0, 560.0);
  const std::string title = std::string(kDistPasses[pass]) + ", " +
                            std::to_string(cells[0]->ranks) + " ranks, " +
                            draw::grouped(cells[0]->tokens) + " tokens each";
  draw::Svg svg(width, kTop + kHeight + 34, title, "share of the kernel alone by mask and side");
  svg.text(24, 24, title, {.size = 16, .is_bold = true});
  svg.text(24, 42, "share of the kernel alone", {.size = 12, .colour = draw::kMutedInk});
  draw_axes(svg, sides, width);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const double middle = kLeft + step * (static_cast<double>(i) + 0.5);
    double x = middle - 0.5 * kBar * static_cast<double>(sides.size());
    for (const DistSide side : sides) {
      const DistSideFigures& figures = cells[i]->sides[static_cast<std::size_t>(side)];
      const double share = figures.passes[pass].share;
      if (figures.is_there) {
        svg.rect_with_tooltip(
            {.x = x, .y = y_of(share), .width = kBar - 1, .height = kTop + kHeight - y_of(share)},
            colour_of(side), std::string(dist_side_name(side)) + " " + draw::decimal(share, 3));
      }
      x += kBar;
    }
    svg.text(middle, kTop + kHeight + 20, options.masks[static_cast<std::size_t>(cells[i]->mask)],
             {.size = 12, .anchor = draw::Anchor::Middle});
  }
  return std::move(svg).finish();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> to_plots(const DistBenchOptions& options,
                                                          const DistReport& report) {
  std::map<std::tuple<std::int32_t, std::int32_t>, Masks> groups;
  for (const DistCell& cell : report.cells) {
    groups[{cell.ranks, cell.tokens}].push_back(&cell);
  }
  std::vector<std::pair<std::string, std::string>> plots;
  for (const auto& [key, cells] : groups) {
    const auto [ranks, tokens] = key;
    for (std::size_t pass = 0; pass < kDistPasses.size(); ++pass) {
      if (!options.times_pass[pass]) continue;
      const std::string name = "dist" + std::to_string(ranks) + "-" + std::to_string(tokens) + "-" +
                               kDistPasses[pass] + ".svg";
      plots.emplace_back(name, picture(options, cells, pass));
    }
  }
  return plots;
}

}  // namespace magi::cli
