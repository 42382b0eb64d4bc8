// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "base/words.hpp"
#include "draw/mask_drawing.hpp"
#include "draw/numbers.hpp"
#include "draw/pictures.hpp"
#include "draw/svg.hpp"

namespace magi::draw {
namespace {

constexpr double kLeft = 84.0;
constexpr double kStripWidth = 560.0;
/// Right edges of the columns, from the end of the strip.
constexpr double kRowsColumn = 76.0;
constexpr double kWorkColumn = 184.0;
constexpr double kFetchedColumn = 290.0;
constexpr double kRunsColumn = 340.0;
constexpr double kWidth = kLeft + kStripWidth + kRunsColumn + 24;
constexpr double kTop = 96.0;
/// More are not drawn, so that a picture stays below 2 MB.
constexpr std::int32_t kMostLanes = 512;
constexpr std::int32_t kMostStripBoxes = 2048;
constexpr std::int32_t kMostLaneBoxes = 8192;

/// Gap between neighbouring chunks, where they are wide enough to bear one.
double gap_of(const Placement& placement) {
  const double chunk = kStripWidth * placement.chunk_size / std::max(placement.num_rows, 1);
  return chunk >= 6.0 ? 1.0 : 0.0;
}

Box chunk_box(const Placement& placement, std::int32_t chunk, double y, double height) {
  const Range rows = placement.chunk_rows(chunk);
  const double scale = kStripWidth / std::max(placement.num_rows, 1);
  return {.x = kLeft + rows.begin * scale,
          .y = y,
          .width = std::max(rows.size() * scale - gap_of(placement), 0.5),
          .height = height};
}

void draw_strip(Svg& svg, const Placement& placement, double y) {
  // Of many chunks one in so many is drawn, as wide as those up to the next.
  const std::int32_t num_chunks = placement.num_chunks();
  const std::int32_t step = (num_chunks + kMostStripBoxes - 1) / kMostStripBoxes;
  for (std::int32_t chunk = 0; chunk < num_chunks; chunk += std::max(step, 1)) {
    const std::int32_t rank = placement.chunk_rank[static_cast<std::size_t>(chunk)];
    const Range rows = placement.chunk_rows(chunk);
    Box box = chunk_box(placement, chunk, y, 30);
    if (step > 1) box.width *= std::min(step, num_chunks - chunk);
    svg.rect_with_tooltip(box, rank_colour(rank, placement.num_ranks),
                          "chunk " + std::to_string(chunk) + ", rows " + grouped(rows.begin) +
                              " to " + grouped(rows.end) + ", rank " + std::to_string(rank));
  }
  const TextStyle number{.size = 12, .anchor = Anchor::Middle, .colour = kMutedInk};
  const double scale = kStripWidth / std::max(placement.num_rows, 1);
  svg.text(kLeft - 10, y - 9, "row", {.size = 12, .anchor = Anchor::End, .colour = kMutedInk});
  for (const std::int32_t row : axis_rows({0, placement.num_rows}, 6)) {
    const double x = kLeft + row * scale;
    svg.line({x, y - 5, x, y}, kMutedInk);
    svg.text(x, y - 9, grouped(row), number);
  }
}

std::int32_t num_lanes(const Placement& placement) {
  return std::min(placement.num_ranks, kMostLanes);
}

/// The chunks of a rank. Where there are many, those that lie close are one box.
std::vector<Box> lane_boxes(const Placement& placement, std::int32_t rank, double y,
                            double height) {
  const bool is_joining = placement.num_chunks() > kMostLaneBoxes;
  const double close = kStripWidth * num_lanes(placement) / kMostLaneBoxes;
  std::vector<Box> boxes;
  for (const std::int32_t chunk : placement.chunks_of(rank)) {
    const Box box = chunk_box(placement, chunk, y, height);
    if (is_joining && !boxes.empty() && box.x - boxes.back().x - boxes.back().width < close) {
      boxes.back().width = box.x + box.width - boxes.back().x;
    } else {
      boxes.push_back(box);
    }
  }
  return boxes;
}

double lane_height(std::int32_t num_ranks) { return num_ranks <= 16 ? 24.0 : 16.0; }

void draw_rank_lines(Svg& svg, const Plan& plan, double y) {
  const Placement& placement = plan.placement_q;
  const double lane = lane_height(placement.num_ranks);
  const TextStyle head{.size = 12, .anchor = Anchor::End, .is_bold = true};
  const TextStyle cell{.size = 12, .anchor = Anchor::End, .colour = kInk};
  const double columns = kLeft + kStripWidth;
  svg.text(columns + kRowsColumn, y - 8, "rows", head);
  svg.text(columns + kWorkColumn, y - 8, "share of work", head);
  svg.text(columns + kFetchedColumn, y - 8, "fetched rows", head);
  const bool has_runs = !plan.report.rank_runs.empty();
  if (has_runs) svg.text(columns + kRunsColumn, y - 8, "runs", head);
  const double pairs = static_cast<double>(area(plan.mask));
  for (std::int32_t rank = 0; rank < num_lanes(placement); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const double top = y + lane * rank;
    const double base = top + lane / 2 + 4;
    svg.rect({.x = kLeft, .y = top + 2, .width = kStripWidth, .height = lane - 4}, kPaper);
    for (const Box& box : lane_boxes(placement, rank, top + 2, lane - 4)) {
      svg.rect(box, rank_colour(rank, placement.num_ranks));
    }
    svg.text(kLeft - 10, base, "rank " + std::to_string(rank), cell);
    svg.text(columns + kRowsColumn, base, grouped(plan.report.rank_rows[r]), cell);
    svg.text(columns + kWorkColumn, base,
             percent_text(static_cast<double>(plan.report.rank_area[r]), pairs), cell);
    svg.text(columns + kFetchedColumn, base, grouped(plan.report.remote_rows[r]), cell);
    if (has_runs) svg.text(columns + kRunsColumn, base, grouped(plan.report.rank_runs[r]), cell);
  }
}

}  // namespace

std::string placement_picture(const Plan& plan, std::string_view title) {
  const Placement& placement = plan.placement_q;
  const bool has_own_keys = plan.config.placement_k.has_value();
  const double lines_top = kTop + (has_own_keys ? 150.0 : 76.0);
  const double height = lines_top + lane_height(placement.num_ranks) * num_lanes(placement) + 24;
  std::string summary = counted(placement.num_chunks(), "chunk") + " of " +
                        grouped(placement.chunk_size) +
                        (placement.chunk_size == 1 ? " row on " : " rows on ") +
                        counted(placement.num_ranks, "rank") + ", by " +
                        placement_name(plan.config.placement.algorithm) + "; most work on a rank " +
                        decimal(plan.report.balance, 3) + " x the mean";
  if (num_lanes(placement) < placement.num_ranks) {
    summary += "; the first " + std::to_string(kMostLanes) + " ranks";
  }
  Svg svg(kWidth, height, title, summary);
  const TextStyle side{.size = 12, .anchor = Anchor::End, .is_bold = true};
  svg.text(kLeft - 10, kTop + 19, has_own_keys ? "queries" : "sequence", side);
  draw_strip(svg, placement, kTop);
  if (has_own_keys) {
    svg.text(kLeft - 10, kTop + 93, "keys", side);
    draw_strip(svg, plan.placement_k, kTop + 74);
  }
  draw_rank_lines(svg, plan, lines_top);
  return std::move(svg).finish();
}

}  // namespace magi::draw
