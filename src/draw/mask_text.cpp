// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "draw/half_blocks.hpp"
#include "draw/numbers.hpp"
#include "draw/pictures.hpp"
#include "draw/svg.hpp"
#include "draw/terminal.hpp"

namespace magi::draw {
namespace {

constexpr std::int32_t kLabelWidth = 14;  // of row numbers, up to 1,073,741,823
constexpr std::int32_t kRanksWidth = 14;  // beside the picture
constexpr std::int32_t kLongestSide = 128;
constexpr std::int32_t kMostListed = 64;
constexpr std::array<const char*, 4> kTypes = {"full", "causal", "inverse causal", "bidirectional"};

struct Size {
  std::int32_t width = 1;
  std::int32_t height = 2;
};

/// Square pixels, of which a row or key of a small mask takes a whole number; a very flat or tall
/// mask gets a quarter of the side at least.
Size size_of(const Mask& mask, std::int32_t side) {
  const std::int32_t keys = std::max(mask.rows_k, 1), queries = std::max(mask.rows_q, 1);
  const std::int32_t longer = std::max(keys, queries);
  if (longer <= side) {
    const std::int32_t scale = side / longer;
    return {.width = keys * scale, .height = queries * scale};
  }
  const auto part = [&](std::int32_t rows) {
    const auto pixels = static_cast<std::int32_t>(std::int64_t{side} * rows / longer);
    return std::max(pixels, std::max(side / 4, 2));
  };
  return {.width = part(keys), .height = part(queries)};
}

/// The rows or keys of a pixel.
Range share(std::int32_t pixel, std::int32_t num_pixels, std::int32_t rows) {
  return {
      static_cast<std::int32_t>(std::int64_t{rows} * pixel / num_pixels),
      static_cast<std::int32_t>((std::int64_t{rows} * (pixel + 1) + num_pixels - 1) / num_pixels)};
}

std::size_t type_of(const BandSlice& slice) {
  const BandSlice tight = shrink(slice);
  return (tight.d_max < kBandInfinity ? 1u : 0u) + (tight.d_min > -kBandInfinity ? 2u : 0u);
}

/// Rows of each rank in a range, by rank.
std::map<std::int32_t, std::int32_t> ranks_of(const Placement& placement, Range rows) {
  std::map<std::int32_t, std::int32_t> found;
  std::int32_t chunk = rows.begin / placement.chunk_size;
  for (; chunk < placement.num_chunks(); ++chunk) {
    const Range own = placement.chunk_rows(chunk);
    if (own.begin >= rows.end) break;
    found[placement.chunk_rank[static_cast<std::size_t>(chunk)]] +=
        std::min(own.end, rows.end) - std::max(own.begin, rows.begin);
  }
  return found;
}

std::int32_t most_of(const std::map<std::int32_t, std::int32_t>& rows_of_ranks) {
  const auto most =
      std::ranges::max_element(rows_of_ranks, {}, [](const auto& one) { return one.second; });
  return most == rows_of_ranks.end() ? 0 : most->first;
}

/// "3", "3 17", "3 17 +6": ranks in at most kRanksWidth columns.
std::string ranks_text(const std::map<std::int32_t, std::int32_t>& rows_of_ranks) {
  std::string text;
  std::size_t num_left = rows_of_ranks.size();
  for (const auto& [rank, rows] : rows_of_ranks) {
    const std::string next = (text.empty() ? "" : " ") + std::to_string(rank);
    const std::size_t rest = num_left > 1 ? 5 : 0;  // " +" and a number
    if (text.size() + next.size() + rest > kRanksWidth - 1) break;
    text += next;
    --num_left;
  }
  return num_left == 0 ? text : text + " +" + std::to_string(num_left);
}

/// The colours of what is drawn, and the pairs of each.
struct Drawing {
  Size size;
  HalfBlocks pixels;
  std::vector<std::string> names;
  std::vector<std::string> colours;
  std::vector<std::int64_t> pairs;
};

Drawing empty_drawing(const Mask& mask, const Placement* placement, std::int32_t side) {
  const Size size = size_of(mask, side);
  Drawing drawing{
      .size = size, .pixels = {size.width, size.height}, .names = {}, .colours = {}, .pairs = {}};
  const std::int32_t count = placement != nullptr ? placement->num_ranks : 4;
  for (std::int32_t i = 0; i < count; ++i) {
    drawing.names.push_back(placement != nullptr ? std::to_string(i)
                                                 : kTypes[static_cast<std::size_t>(i)]);
    drawing.colours.push_back(rank_colour(i, count));
  }
  drawing.pairs.resize(static_cast<std::size_t>(count));
  return drawing;
}

/// Paints every pixel of which a pair is seen. Keys of neighbouring rows of a band overlap or
/// touch, so that those of several rows are one run.
void paint(Drawing& drawing, const Mask& mask, const Placement* placement) {
  const auto [width, height] = drawing.size;
  for (std::int32_t row = 0; row < height; ++row) {
    const Range rows = share(row, height, mask.rows_q);
    const std::int32_t rank = placement != nullptr ? most_of(ranks_of(*placement, rows)) : 0;
    for (const BandSlice& slice : mask.slices) {
      if (slice.q1 <= rows.begin || slice.q0 >= rows.end) continue;
      const BandSlice part = shrink(cut_q(slice, rows));
      if (area(part) == 0) continue;
      const auto begin = static_cast<std::int32_t>(std::int64_t{part.k0} * width / mask.rows_k);
      const auto end = static_cast<std::int32_t>((std::int64_t{part.k1} * width + mask.rows_k - 1) /
                                                 mask.rows_k);
      const auto colour = placement != nullptr ? rank : static_cast<std::int32_t>(type_of(slice));
      drawing.pixels.paint(row, begin, end, colour);
    }
  }
}

/// Pairs of each rank, or of each type of slice.
void count_pairs(Drawing& drawing, const Mask& mask, const Placement* placement) {
  if (placement == nullptr) {
    for (const BandSlice& slice : mask.slices) drawing.pairs[type_of(slice)] += area(slice);
    return;
  }
  for (const BandSlice& slice : mask.slices) {
    std::int32_t chunk = slice.q0 / placement->chunk_size;
    for (; chunk < placement->num_chunks(); ++chunk) {
      const Range rows = placement->chunk_rows(chunk);
      if (rows.begin >= slice.q1) break;
      const auto rank = placement->chunk_rank[static_cast<std::size_t>(chunk)];
      drawing.pairs[static_cast<std::size_t>(rank)] += area(cut_q(slice, rows));
    }
  }
}

std::string key_axis(const Drawing& drawing, std::int32_t rows_k) {
  const std::int32_t width = drawing.size.width + 2;  // with the borders
  std::vector<AxisLabel> labels;
  for (const double key : ticks(rows_k, width > 60 ? 5 : 2, 1.0)) {
    const double place = 1 + key * drawing.size.width / std::max(rows_k, 1);
    labels.push_back({.place = place, .text = grouped(static_cast<std::int64_t>(key))});
  }
  labels.push_back({.place = static_cast<double>(width), .text = grouped(rows_k)});
  return axis_line(labels, width);
}

/// Row numbers by the line beside which they stand.
std::map<std::int32_t, std::string> row_labels(const Drawing& drawing, std::int32_t rows_q) {
  std::map<std::int32_t, std::string> labels;
  const std::int32_t num_lines = drawing.pixels.num_lines();
  for (const double row : ticks(rows_q, num_lines > 20 ? 5 : 2, 1.0)) {
    const double line = row * drawing.size.height / std::max(rows_q, 1) / 2;
    labels[std::min(static_cast<std::int32_t>(line), num_lines - 1)] =
        grouped(static_cast<std::int64_t>(row));
  }
  return labels;
}

/// The lines of pixels with what stands beside them.
std::string body(const Drawing& drawing, const Mask& mask, const Placement* placement,
                 const TerminalStyle& style) {
  const std::string indent(kLabelWidth, ' ');
  std::string text = indent + key_axis(drawing, mask.rows_k) + "\n";
  text +=
      indent + drawing.pixels.border(true, style) + (placement != nullptr ? " ranks" : "") + "\n";
  const auto labels = row_labels(drawing, mask.rows_q);
  for (std::int32_t line = 0; line < drawing.pixels.num_lines(); ++line) {
    const auto label = labels.find(line);
    text += right_aligned(label == labels.end() ? "" : label->second, kLabelWidth - 1) + " ";
    text += drawing.pixels.line(line, drawing.colours, style);
    if (placement != nullptr && mask.rows_q > 0) {
      const std::int32_t height = drawing.size.height;
      const Range upper = share(2 * line, height, mask.rows_q);
      const Range lower = share(std::min(2 * line + 1, height - 1), height, mask.rows_q);
      text += " " + ranks_text(ranks_of(*placement, {upper.begin, lower.end}));
    }
    text += "\n";
  }
  return text + right_aligned(grouped(mask.rows_q), kLabelWidth - 1) + " " +
         drawing.pixels.border(false, style) + "\n";
}

/// Shares of the work, in columns; of very many ranks the largest and the least.
std::string legend(const Drawing& drawing, bool is_of_ranks, const TerminalStyle& style) {
  std::int64_t total = 0;
  for (const std::int64_t pairs : drawing.pairs) total += pairs;
  const auto share_text = [&](std::size_t i) {
    return percent_text(static_cast<double>(drawing.pairs[i]), static_cast<double>(total));
  };
  std::string text = is_of_ranks ? "rank: share of work\n" : "slice type: share of work\n";
  const auto count = static_cast<std::int32_t>(drawing.names.size());
  if (count > kMostListed) {
    const auto [least, most] = std::ranges::minmax_element(drawing.pairs);
    const auto of = [&](auto at) {
      const auto i = static_cast<std::size_t>(at - drawing.pairs.begin());
      return drawing.names[i] + ": " + share_text(i);
    };
    return text + "of " + std::to_string(count) + " ranks the most " + of(most) + ", the least " +
           of(least) + "\n";
  }
  constexpr std::int32_t kRankColumn = 14, kTypeColumn = 26;
  const std::int32_t column = is_of_ranks ? kRankColumn : kTypeColumn;
  std::int32_t used = 0;
  for (std::size_t i = 0; i < drawing.names.size(); ++i) {
    if (!is_of_ranks && drawing.pairs[i] == 0) continue;
    if (used + column > style.width) {
      text.erase(text.find_last_not_of(' ') + 1);
      text += "\n";
      used = 0;
    }
    const std::string mark = style.has_colour ? (style.is_ascii ? "#" : "█") : "";
    const std::string entry =
        (is_of_ranks ? right_aligned(drawing.names[i], 4) : drawing.names[i]) + ": " +
        share_text(i);
    const std::size_t room = static_cast<std::size_t>(column) - (mark.empty() ? 0 : 1);
    text += coloured(mark, drawing.colours[i], style) + left_aligned(entry, room);
    used += column;
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

}  // namespace

std::string mask_text(const Mask& mask, const Placement* placement, std::string_view title,
                      const TerminalStyle& style) {
  if (placement != nullptr && placement->num_rows < mask.rows_q) {
    throw invalid("placement rows", placement->num_rows,
                  "the mask's " + std::to_string(mask.rows_q) + " query rows or more");
  }
  const std::int32_t beside = kLabelWidth + 2 + (placement != nullptr ? kRanksWidth : 0);
  const std::int32_t side = std::clamp(style.width - beside, 8, kLongestSide);
  Drawing drawing = empty_drawing(mask, placement, side);
  if (mask.rows_q > 0 && mask.rows_k > 0) paint(drawing, mask, placement);
  count_pairs(drawing, mask, placement);
  return std::string(title) + "\n" + mask_summary(mask) + "\n" +
         body(drawing, mask, placement, style) + legend(drawing, placement != nullptr, style);
}

}  // namespace magi::draw
