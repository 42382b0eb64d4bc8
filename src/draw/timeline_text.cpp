// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "draw/half_blocks.hpp"
#include "draw/numbers.hpp"
#include "draw/pictures.hpp"
#include "plan/cost/loads.hpp"
#include "plan/cost/timeline.hpp"

namespace magi::draw {
namespace {

constexpr std::int32_t kLabelWidth = 10;  // "rank 4095 "
constexpr std::int32_t kShareWidth = 10;  // " 100 %"
constexpr std::int32_t kMostRanks = 64;
constexpr std::int32_t kMostColumns = 200;
constexpr std::int32_t kExchange = 0, kAttention = 1;
const std::vector<std::string>& colours() {
  static const std::vector<std::string> both{"#e69f00", "#0072b2"};
  return both;
}

/// Paints the times of a kind of step in the upper or lower pixels of a line.
void paint(HalfBlocks& pixels, std::int32_t line, const std::vector<Step>& steps,
           const planner::PassTimes& times, std::int64_t end_ns) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto [begin, end] = times.steps[i];
    if (end == begin) continue;
    const std::int64_t width = pixels.width();
    const auto first = static_cast<std::int32_t>(begin * width / end_ns);
    const auto last = static_cast<std::int32_t>((end * width + end_ns - 1) / end_ns);
    const bool is_exchange = steps[i].kind == StepKind::Exchange;
    pixels.paint(2 * line + (is_exchange ? 0 : 1), first, last,
                 is_exchange ? kExchange : kAttention);
  }
}

std::string time_axis(std::int64_t end_ns, std::int32_t width) {
  const double end = static_cast<double>(end_ns) * 1e-9;
  std::vector<AxisLabel> labels;
  for (const double at : ticks(end, width > 60 ? 5 : 2)) {
    labels.push_back({.place = end > 0.0 ? at / end * width : 0.0, .text = seconds_text(at)});
  }
  labels.push_back({.place = static_cast<double>(width), .text = seconds_text(end)});
  return axis_line(labels, width);
}

std::string key_line(const TerminalStyle& style) {
  const std::string exchange = style.is_ascii ? "'" : "▀";
  const std::string attention = style.is_ascii ? "." : "▄";
  std::string text = coloured(exchange, colours()[kExchange], style) + " exchanges, " +
                     coloured(attention, colours()[kAttention], style) + " attends";
  if (!style.has_colour) text += style.is_ascii ? ", # both" : ", █ both";
  return text + "; % of the time that a rank attends\n";
}

}  // namespace

std::string timeline_text(const Plan& plan, std::string_view title, const TerminalStyle& style) {
  const planner::PlanLoads loads(plan);
  const std::vector<planner::PassTimes> ranks = planner::predict_times(plan, loads, false);
  const std::int64_t end_ns =
      std::ranges::max_element(ranks, {}, &planner::PassTimes::end_ns)->end_ns;
  const auto count = std::min(static_cast<std::int32_t>(ranks.size()), kMostRanks);
  HalfBlocks pixels(std::clamp(style.width - kLabelWidth - kShareWidth, 8, kMostColumns),
                    2 * count);
  for (std::int32_t rank = 0; rank < count; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    paint(pixels, rank, plan.ranks[r].forward, ranks[r], end_ns);
  }
  std::string text = std::string(title) + "\none forward pass as the cost model predicts it: " +
                     seconds_text(static_cast<double>(end_ns) * 1e-9);
  if (plan.stages_in_flight > 0) {
    text += ", " + bytes_text(std::ranges::max(plan.report.rank_memory)) + " of exchange memory";
  }
  if (count < static_cast<std::int32_t>(ranks.size())) {
    text +=
        "; the first " + std::to_string(count) + " of " + std::to_string(ranks.size()) + " ranks";
  }
  const std::string indent(kLabelWidth, ' ');
  text += "\n" + indent + time_axis(end_ns, pixels.width() + 2) + "\n";
  text += indent + pixels.border(true, style) + "\n";
  for (std::int32_t rank = 0; rank < count; ++rank) {
    const planner::PassTimes& times = ranks[static_cast<std::size_t>(rank)];
    text += left_aligned("rank " + std::to_string(rank), kLabelWidth) +
            pixels.line(rank, colours(), style) + " " +
            percent_text(static_cast<double>(times.attending_ns), static_cast<double>(end_ns)) +
            "\n";
  }
  return text + indent + pixels.border(false, style) + "\n" + key_line(style);
}

}  // namespace magi::draw
