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
/// Cells a side: more ranks share cells, so that a picture stays below 3 MB.
constexpr std::int32_t kMostCells = 128;

double cell_side(std::int32_t num_cells) {
  return num_cells <= kMostNumberedRanks ? 62.0 : std::max(640.0 / num_cells, 3.0);
}

/// Bytes between ranks, or between groups of neighbouring ranks where there are many.
struct Cells {
  std::int32_t num_ranks = 0;
  std::int32_t group = 1;  ///< ranks of a cell's side
  std::int32_t count = 0;  ///< cells a side
  std::vector<std::int64_t> bytes;

  explicit Cells(const Plan& plan) : num_ranks(plan.config.num_ranks) {
    group = (num_ranks + kMostCells - 1) / kMostCells;
    count = (num_ranks + group - 1) / group;
    bytes.assign(static_cast<std::size_t>(count) * static_cast<std::size_t>(count), 0);
    auto from = plan.report.pair_bytes.begin();
    for (std::int32_t src = 0; src < num_ranks; ++src) {
      for (std::int32_t dst = 0; dst < num_ranks; ++dst) at(src / group, dst / group) += *from++;
    }
  }

  std::int64_t& at(std::int32_t src, std::int32_t dst) {
    return bytes[static_cast<std::size_t>(src) * static_cast<std::size_t>(count) +
                 static_cast<std::size_t>(dst)];
  }
  std::int64_t between(std::int32_t src, std::int32_t dst) const {
    return const_cast<Cells*>(this)->at(src, dst);
  }
  std::string name(std::int32_t cell) const {
    const std::int32_t first = cell * group, last = std::min(first + group, num_ranks) - 1;
    if (first == last) return "rank " + std::to_string(first);
    return "ranks " + std::to_string(first) + " to " + std::to_string(last);
  }
};

/// Every how many cells a label fits.
std::int32_t label_step(std::int32_t num_cells) {
  std::int32_t step = 1;
  while (step * cell_side(num_cells) < 18.0) step *= 2;
  return step;
}

void draw_cells(Svg& svg, const Cells& cells) {
  const double side = cell_side(cells.count);
  const double gap = side > 8 ? 2.0 : 0.0;
  const std::int64_t most =
      std::max<std::int64_t>(1, *std::max_element(cells.bytes.begin(), cells.bytes.end()));
  for (std::int32_t src = 0; src < cells.count; ++src) {
    for (std::int32_t dst = 0; dst < cells.count; ++dst) {
      const std::int64_t bytes = cells.between(src, dst);
      const bool is_own = src == dst && cells.group == 1;
      const std::string fill =
          is_own ? std::string("#e4e7eb")
                 : scale_colour(static_cast<double>(bytes) / static_cast<double>(most));
      const Box box{.x = kLeft + dst * side,
                    .y = kTop + src * side,
                    .width = side - gap,
                    .height = side - gap};
      svg.rect_with_tooltip(
          box, fill, cells.name(src) + " to " + cells.name(dst) + ": " + grouped(bytes) + " bytes");
      if (cells.count > kMostNumberedRanks || is_own) continue;
      svg.text(box.x + box.width / 2, box.y + box.height / 2 + 4, bytes_text(bytes),
               {.size = 12, .anchor = Anchor::Middle, .colour = text_colour_on(fill)});
    }
  }
}

/// A frame around the cells of each node; none where a cell holds ranks of two nodes.
void draw_nodes(Svg& svg, const Cells& cells, const PlanConfig& config) {
  if (!has_nodes(config) || config.devices_per_node % cells.group != 0) return;
  const std::int32_t node = config.devices_per_node / cells.group;
  const double side = cell_side(cells.count);
  for (std::int32_t first = 0; first < cells.count; first += node) {
    const std::int32_t size = std::min(node, cells.count - first);
    svg.rect({.x = kLeft + first * side - 1,
              .y = kTop + first * side - 1,
              .width = size * side,
              .height = size * side},
             "none", "stroke=\"#e8590c\" stroke-width=\"2\"");
  }
}

std::int64_t bytes_between_nodes(const Plan& plan) {
  const std::int32_t node = plan.config.devices_per_node;
  std::int64_t bytes = 0;
  auto from = plan.report.pair_bytes.begin();
  for (std::int32_t src = 0; src < plan.config.num_ranks; ++src) {
    for (std::int32_t dst = 0; dst < plan.config.num_ranks; ++dst, ++from) {
      if (src / node != dst / node) bytes += *from;
    }
  }
  return bytes;
}

void draw_totals(Svg& svg, const Cells& cells) {
  const std::int32_t count = cells.count;
  const double side = cell_side(count);
  const TextStyle end{.size = 12, .anchor = Anchor::End};
  const TextStyle middle{.size = 12, .anchor = Anchor::Middle};
  const double right = kLeft + count * side;
  const double bottom = kTop + count * side;
  svg.text(right + 84, kTop - 12, "sent", {.size = 12, .anchor = Anchor::End, .is_bold = true});
  for (std::int32_t cell = 0; cell < count; cell += label_step(count)) {
    std::int64_t sent = 0;
    std::int64_t received = 0;
    for (std::int32_t peer = 0; peer < count; ++peer) {
      sent += cells.between(cell, peer);
      received += cells.between(peer, cell);
    }
    const double centre = side * (cell + 0.5);
    const std::string first = std::to_string(cell * cells.group);
    svg.text(kLeft - 12, kTop + centre + 4, first, end);
    svg.text(kLeft + centre - 1, kTop - 12, first, middle);
    svg.text(right + 84, kTop + centre + 4, bytes_text(sent), end);
    if (count <= kMostNumberedRanks) {
      svg.text(kLeft + centre - 1, bottom + 20, bytes_text(received), middle);
    }
  }
  if (count <= kMostNumberedRanks) {
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
  const Cells cells(plan);
  const double side = cell_side(cells.count) * cells.count;
  const double bars_top = kTop + side + 40;
  const std::string summary =
      std::string("bytes of keys and values") +
      (plan.ranks.front().q.segments.size() > 1 ? ", queries and results" : "") +
      " in one forward call: " + grouped(plan.report.total_bytes) + " (" +
      percent_text(static_cast<double>(plan.report.total_bytes),
                   static_cast<double>(plan.report.ring_bytes)) +
      " of a ring)" +
      (has_nodes(plan.config)
           ? "; between nodes of " + std::to_string(plan.config.devices_per_node) + ": " +
                 grouped(bytes_between_nodes(plan))
           : "") +
      (cells.group > 1 ? "; a cell is of " + std::to_string(cells.group) + " ranks" : "");
  Svg svg(std::max(kLeft + side + 108, 500.0), bars_top + 78, title, summary);
  draw_cells(svg, cells);
  draw_nodes(svg, cells, plan.config);
  draw_totals(svg, cells);
  draw_comparison(svg, plan, bars_top);
  return std::move(svg).finish();
}

}  // namespace magi::draw
