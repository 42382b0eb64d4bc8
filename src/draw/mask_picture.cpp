// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "draw/geometry.hpp"
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

/// The cells that are drawn in one colour: the work of a rank, or the slices of a type.
struct Group {
  std::string name;
  std::string colour;
  std::string data;        ///< path data
  std::int64_t pairs = 0;  ///< that it stands for
};

/// Consecutive query rows of one rank.
struct Run {
  Range rows;
  std::int32_t rank = 0;
};

std::vector<Run> runs_of(const Mask& mask, const Placement* placement) {
  if (placement == nullptr) return {{.rows = {0, mask.rows_q}}};
  if (placement->num_rows < mask.rows_q) {
    throw invalid("placement rows", placement->num_rows,
                  "the mask's " + std::to_string(mask.rows_q) + " query rows or more");
  }
  std::vector<Run> runs;
  for (std::int32_t chunk = 0; chunk < placement->num_chunks(); ++chunk) {
    const Range rows = placement->chunk_rows(chunk);
    const std::int32_t rank = placement->chunk_rank[static_cast<std::size_t>(chunk)];
    if (!runs.empty() && runs.back().rank == rank) {
      runs.back().rows.end = rows.end;
    } else {
      runs.push_back({.rows = rows, .rank = rank});
    }
  }
  return runs;
}

/// Pixels of the plot and how rows map to them.
struct Frame {
  Box plot;
  double per_key = 0.0;
  double per_query = 0.0;
};

Frame frame_of(const Mask& mask) {
  const double keys = std::max(mask.rows_k, 1);
  const double queries = std::max(mask.rows_q, 1);
  const double longer = std::max(keys, queries);
  // A very flat or tall mask gets a quarter of the side at least, so that it stays readable.
  const double width = kPlotSide * std::max(keys / longer, 0.25);
  const double height = kPlotSide * std::max(queries / longer, 0.25);
  return {.plot = {.x = kLeft, .y = kTop, .width = width, .height = height},
          .per_key = width / keys,
          .per_query = height / queries};
}

void append_polygon(std::string& data, const Polygon& polygon, const Frame& frame) {
  const char* command = "M";
  for (const Point& point : polygon) {
    data += command + decimal(frame.plot.x + point.k * frame.per_key) + " " +
            decimal(frame.plot.y + point.q * frame.per_query);
    command = "L";
  }
  if (!polygon.empty()) data += "Z";
}

/// Groups by rank, or without a placement by type of slice.
std::vector<Group> empty_groups(const Placement* placement) {
  std::vector<Group> groups;
  if (placement == nullptr) {
    constexpr std::array<const char*, 4> kTypes = {"full", "causal", "inverse causal",
                                                   "bidirectional"};
    for (std::int32_t type = 0; type < 4; ++type) {
      groups.push_back(
          {.name = kTypes[static_cast<std::size_t>(type)], .colour = rank_colour(type, 4)});
    }
    return groups;
  }
  for (std::int32_t rank = 0; rank < placement->num_ranks; ++rank) {
    groups.push_back(
        {.name = std::to_string(rank), .colour = rank_colour(rank, placement->num_ranks)});
  }
  return groups;
}

/// Index of a type as in MaskType: which diagonals bind.
std::size_t type_of(const BandSlice& slice) {
  const BandSlice tight = shrink(slice);
  return (tight.d_max < kBandInfinity ? 1u : 0u) + (tight.d_min > -kBandInfinity ? 2u : 0u);
}

std::vector<Group> groups_of(const Mask& mask, const Placement* placement, const Frame& frame) {
  const bool is_exact = std::min(frame.per_key, frame.per_query) >= kExactCellPixels;
  const std::vector<Run> runs = runs_of(mask, placement);
  std::vector<Group> groups = empty_groups(placement);
  for (const BandSlice& slice : mask.slices) {
    auto run = std::partition_point(runs.begin(), runs.end(),
                                    [&](const Run& r) { return r.rows.end <= slice.q0; });
    for (; run != runs.end() && run->rows.begin < slice.q1; ++run) {
      const BandSlice part = cut_q(slice, run->rows);
      const std::int64_t pairs = area(part);
      if (pairs == 0) continue;
      Group& group =
          groups[placement == nullptr ? type_of(slice) : static_cast<std::size_t>(run->rank)];
      group.pairs += pairs;
      append_polygon(group.data, is_exact ? exact_polygon(part) : smooth_polygon(part), frame);
    }
  }
  // Every rank is listed, also an idle one; types only where there are any.
  if (placement == nullptr) {
    std::erase_if(groups, [](const Group& group) { return group.pairs == 0; });
  }
  return groups;
}

void draw_axes(Svg& svg, const Mask& mask, const Frame& frame) {
  const Box& plot = frame.plot;
  const TextStyle number{.size = 12, .anchor = Anchor::Middle, .colour = kMutedInk};
  for (const double key : ticks(mask.rows_k, plot.width > 300 ? 5 : 2, 1.0)) {
    const double x = plot.x + key * frame.per_key;
    svg.line({x, plot.y - 5, x, plot.y}, kMutedInk);
    svg.text(x, plot.y - 9, grouped(static_cast<std::int64_t>(key)), number);
  }
  const double right = plot.x + plot.width;
  const double bottom = plot.y + plot.height;
  svg.line({right, plot.y - 5, right, plot.y}, kMutedInk);
  svg.text(right, plot.y - 9, grouped(mask.rows_k), number);
  TextStyle side = number;
  side.anchor = Anchor::End;
  for (const double query : ticks(mask.rows_q, plot.height > 300 ? 5 : 2, 1.0)) {
    const double y = plot.y + query * frame.per_query;
    svg.line({plot.x - 5, y, plot.x, y}, kMutedInk);
    svg.text(plot.x - 9, y + 4, grouped(static_cast<std::int64_t>(query)), side);
  }
  svg.line({plot.x - 5, bottom, plot.x, bottom}, kMutedInk);
  svg.text(plot.x - 9, bottom + 4, grouped(mask.rows_q), side);
  svg.text(plot.x + plot.width / 2, plot.y - 27, "key row",
           {.size = 12, .anchor = Anchor::Middle, .colour = kInk});
  svg.text(plot.x, bottom + 22, "query rows run downwards", {.size = 11, .colour = kMutedInk});
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

std::string mask_summary(const Mask& mask) {
  const std::int64_t pairs = area(mask);
  const double dense = static_cast<double>(mask.rows_q) * mask.rows_k;
  return grouped(mask.rows_q) + " queries, " + grouped(mask.rows_k) + " keys, " +
         grouped(static_cast<std::int64_t>(mask.slices.size())) +
         (mask.slices.size() == 1 ? " slice, " : " slices, ") + grouped(pairs) + " pairs (" +
         percent_text(static_cast<double>(pairs), dense) + " of dense)";
}

std::string mask_picture(const Mask& mask, const Placement* placement, std::string_view title) {
  const Frame frame = frame_of(mask);
  const std::vector<Group> groups = groups_of(mask, placement, frame);
  const std::string summary = mask_summary(mask);

  const double legend_height =
      24 + kLegendLine * static_cast<double>(std::min(groups.size(), kMostLegendLines));
  const double legend_x = frame.plot.x + frame.plot.width + 28;
  const double width = std::max(legend_x + kLegendWidth, 560.0);
  const double height = kTop + std::max(frame.plot.height + 40, legend_height + 16);
  Svg svg(width, height, title, summary);
  svg.text(24, 28, title, {.size = 16, .is_bold = true});
  svg.text(24, 47, summary, {.size = 12, .colour = kMutedInk});
  svg.rect(frame.plot, kPaper);
  for (const Group& group : groups) {
    if (!group.data.empty()) svg.path(group.data, group.colour);
  }
  svg.rect(frame.plot, "none", "stroke=\"#9aa5b1\"");
  draw_axes(svg, mask, frame);
  draw_legend(svg, groups, legend_x,
              placement == nullptr ? "slice type: share" : "rank: share of work");
  return std::move(svg).finish();
}

}  // namespace magi::draw
