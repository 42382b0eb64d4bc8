// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "draw/geometry.hpp"
#include "draw/mask_drawing.hpp"
#include "draw/numbers.hpp"
#include "draw/pictures.hpp"
#include "draw/svg.hpp"

namespace magi::draw {
namespace {

constexpr double kPlotSide = 520.0;
constexpr double kLeft = 84.0;
constexpr double kTop = 104.0;
constexpr double kLegendWidth = 184.0;
constexpr double kLegendLine = 20.0;
constexpr std::size_t kMostLegendLines = 24;
/// The pixels per row from which cells are drawn corner by corner.
constexpr double kExactCellPixels = 4.0;
/// The mean thickness in pixels below which a slice is hard to see.
constexpr double kThinPixels = 1.5;
constexpr double kBlockPixels = 4.0;
constexpr std::int64_t kShades = 8;

/// Pixels of the plot and how rows map to them.
struct Frame {
  Box plot;
  Point first;  ///< key and query in the upper left corner
  double per_key = 0.0;
  double per_query = 0.0;

  double x(double key) const { return plot.x + (key - first.k) * per_key; }
  double y(double query) const { return plot.y + (query - first.q) * per_query; }
};

Frame frame_of(const MaskDrawing& drawing) {
  const double keys = std::max(drawing.keys.size(), 1);
  const double queries = std::max(drawing.rows.size(), 1);
  const double longer = std::max(keys, queries);
  // A very flat or tall mask gets a quarter of the side at least, so that it stays readable.
  const double width = kPlotSide * std::max(keys / longer, 0.25);
  const double height = kPlotSide * std::max(queries / longer, 0.25);
  return {.plot = {.x = kLeft, .y = kTop, .width = width, .height = height},
          .first = {.k = double(drawing.keys.begin), .q = double(drawing.rows.begin)},
          .per_key = width / keys,
          .per_query = height / queries};
}

void append_polygon(std::string& data, const Polygon& polygon, const Frame& frame) {
  const char* command = "M";
  for (const Point& point : polygon) {
    data += command + decimal(frame.x(point.k)) + " " + decimal(frame.y(point.q));
    command = "L";
  }
  if (!polygon.empty()) data += "Z";
}

void draw_slices(Svg& svg, const MaskDrawing& drawing, const Frame& frame) {
  const bool is_exact = std::min(frame.per_key, frame.per_query) >= kExactCellPixels;
  std::vector<std::string> paths(drawing.groups.size());
  for (const auto& [slice, group] : drawing.pieces) {
    append_polygon(paths[group], is_exact ? exact_polygon(slice) : smooth_polygon(slice), frame);
  }
  for (std::size_t group = 0; group < paths.size(); ++group) {
    if (!paths[group].empty()) svg.path(paths[group], drawing.groups[group].colour);
  }
}

/// Whether thin slices are half of the length of all.
bool is_thin(const Mask& mask, const MaskDrawing& drawing, const Frame& frame) {
  double thin = 0.0, all = 0.0;
  for (const BandSlice& slice : mask.slices) {
    const BandSlice part = shrink(cut_k(cut_q(slice, drawing.rows), drawing.keys));
    const double length =
        std::max((part.q1 - part.q0) * frame.per_query, (part.k1 - part.k0) * frame.per_key);
    const double pixels = static_cast<double>(area(part)) * frame.per_query * frame.per_key;
    all += length;
    if (pixels < kThinPixels * length) thin += length;
  }
  return 2.0 * thin > all;
}

/// Returns what a reader is told of them.
std::string draw_blocks(Svg& svg, const MaskDrawing& drawing, const Frame& frame) {
  const auto count = [](double pixels, Range rows) {
    return std::min(static_cast<std::int32_t>(pixels / kBlockPixels), rows.size());
  };
  const std::int32_t width = count(frame.plot.width, drawing.keys);
  const std::int32_t height = count(frame.plot.height, drawing.rows);
  const std::vector<Block> blocks = blocks_of(drawing, width, height);
  const double side_x = frame.plot.width / width, side_y = frame.plot.height / height;
  std::map<std::pair<std::size_t, std::int64_t>, std::string> paths;  // by group and shade
  for (std::int32_t i = 0; i < width * height; ++i) {
    const Block& block = blocks[static_cast<std::size_t>(i)];
    if (block.pairs == 0) continue;
    const std::int32_t line = i / width, column = i % width;
    const std::int64_t all = std::int64_t{share(drawing.rows, line, height).size()} *
                             share(drawing.keys, column, width).size();
    const std::int64_t shade = std::min((block.pairs * kShades + all - 1) / all, kShades);
    paths[{block.group, shade}] += "M" + decimal(frame.plot.x + column * side_x) + " " +
                                   decimal(frame.plot.y + line * side_y) + "h" + decimal(side_x) +
                                   "v" + decimal(side_y) + "h-" + decimal(side_x) + "Z";
  }
  for (const auto& [key, path] : paths) {
    const double opacity = 0.4 + 0.6 * static_cast<double>(key.second) / kShades;
    svg.path(path, drawing.groups[key.first].colour,
             "fill-opacity=\"" + decimal(opacity) + "\" shape-rendering=\"crispEdges\"");
  }
  return "; blocks of " + grouped(share(drawing.rows, 0, height).size()) + " rows and " +
         grouped(share(drawing.keys, 0, width).size()) + " keys, paler where less of one is seen";
}

void draw_axes(Svg& svg, const MaskDrawing& drawing, const Frame& frame) {
  const Box& plot = frame.plot;
  const TextStyle number{.size = 12, .anchor = Anchor::Middle, .colour = kMutedInk};
  for (const std::int32_t key : axis_rows(drawing.keys, plot.width > 300 ? 5 : 2)) {
    svg.line({frame.x(key), plot.y - 5, frame.x(key), plot.y}, kMutedInk);
    svg.text(frame.x(key), plot.y - 9, grouped(key), number);
  }
  TextStyle side = number;
  side.anchor = Anchor::End;
  for (const std::int32_t query : axis_rows(drawing.rows, plot.height > 300 ? 5 : 2)) {
    svg.line({plot.x - 5, frame.y(query), plot.x, frame.y(query)}, kMutedInk);
    svg.text(plot.x - 9, frame.y(query) + 4, grouped(query), side);
  }
  svg.text(plot.x + plot.width / 2, plot.y - 27, "key row",
           {.size = 12, .anchor = Anchor::Middle, .colour = kInk});
}

void draw_legend(Svg& svg, const std::vector<Group>& groups, double x, std::string_view head) {
  std::int64_t total = 0;
  for (const Group& group : groups) total += group.pairs;
  svg.text(x, kTop + 4, head, {.size = 12, .is_bold = true});
  const std::size_t shown = std::min(groups.size(), kMostLegendLines);
  for (std::size_t line = 0; line < shown; ++line) {
    // With more groups than lines, the lines are spread over them, first and last included.
    const Group& group =
        groups[shown == groups.size() ? line : line * (groups.size() - 1) / (shown - 1)];
    const double y = kTop + 16 + kLegendLine * static_cast<double>(line);
    svg.rect({.x = x, .y = y, .width = 14, .height = 14}, group.colour);
    svg.text(x + 22, y + 11.5, group.name, {.size = 12});
    svg.text(x + kLegendWidth - 20, y + 11.5,
             percent_text(static_cast<double>(group.pairs), static_cast<double>(total)),
             {.size = 12, .anchor = Anchor::End, .colour = kMutedInk});
  }
}

}  // namespace

std::string mask_picture(const Mask& mask, const Placement* placement, std::string_view title,
                         const MaskPart& part) {
  const MaskDrawing drawing = mask_drawing(mask, placement, part);
  const Frame frame = frame_of(drawing);
  std::vector<Group> groups = drawing.groups;
  // Every rank is listed, also an idle one; types only where there are any.
  if (placement == nullptr) {
    std::erase_if(groups, [](const Group& group) { return group.pairs == 0; });
  }
  const double legend_height =
      24 + kLegendLine * static_cast<double>(std::min(groups.size(), kMostLegendLines));
  const double legend_x = frame.plot.x + frame.plot.width + 28;
  const double width = std::max(legend_x + kLegendWidth, 560.0);
  const double height = kTop + std::max(frame.plot.height + 40, legend_height + 16);
  Svg svg(width, height, title, drawing.summary);
  svg.rect(frame.plot, kPaper);
  std::string note = "query rows run downwards";
  if (is_thin(mask, drawing, frame)) {
    note += draw_blocks(svg, drawing, frame);
  } else {
    draw_slices(svg, drawing, frame);
  }
  svg.rect(frame.plot, "none", "stroke=\"#9aa5b1\"");
  draw_axes(svg, drawing, frame);
  svg.text(frame.plot.x, frame.plot.y + frame.plot.height + 22, note,
           {.size = 11, .colour = kMutedInk});
  draw_legend(svg, groups, legend_x,
              placement == nullptr ? "slice type: share" : "rank: share of work");
  return std::move(svg).finish();
}

}  // namespace magi::draw
