// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "draw/half_blocks.hpp"
#include "draw/mask_drawing.hpp"
#include "draw/numbers.hpp"
#include "draw/pictures.hpp"

namespace magi::draw {
namespace {

constexpr std::int32_t kLabelWidth = 14;  // of row numbers, up to 1,073,741,823
constexpr std::int32_t kRanksWidth = 14;  // beside the picture
constexpr std::int32_t kLongestSide = 128;
constexpr std::size_t kMostListed = 64;

struct Size {
  std::int32_t width = 1;
  std::int32_t height = 2;
};

/// Square pixels, of which a row or key of a small mask takes a whole number; a very flat or tall
/// mask gets a quarter of the side at least.
Size size_of(const MaskDrawing& drawing, std::int32_t side) {
  const std::int32_t keys = std::max(drawing.keys.size(), 1);
  const std::int32_t queries = std::max(drawing.rows.size(), 1);
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

/// Every pixel of which a pair is seen.
HalfBlocks painted(const MaskDrawing& drawing, Size size) {
  HalfBlocks pixels(size.width, size.height);
  if (drawing.pieces.empty()) return pixels;
  const std::vector<Block> blocks = blocks_of(drawing, size.width, size.height);
  for (std::int32_t i = 0; i < size.width * size.height; ++i) {
    const Block& block = blocks[static_cast<std::size_t>(i)];
    const std::int32_t column = i % size.width;
    if (block.pairs == 0) continue;
    pixels.paint(i / size.width, column, column + 1, static_cast<std::int32_t>(block.group));
  }
  return pixels;
}

std::string key_axis(Range keys, std::int32_t width) {
  std::vector<AxisLabel> labels;
  for (const std::int32_t key : axis_rows(keys, width > 58 ? 5 : 2)) {
    const double at = double(key - keys.begin) * width / std::max(keys.size(), 1);
    labels.push_back({.place = 1 + at, .text = grouped(key)});
  }
  labels.back().place += 1;
  return axis_line(labels, width + 2);  // with the borders
}

/// Row numbers by the line beside which they stand.
std::map<std::int32_t, std::string> row_labels(Range rows, std::int32_t num_lines, double height) {
  std::map<std::int32_t, std::string> labels;
  std::vector<std::int32_t> shown = axis_rows(rows, num_lines > 20 ? 5 : 2);
  shown.pop_back();  // stands beside the border
  for (const std::int32_t row : shown) {
    const double line = (row - rows.begin) * height / std::max(rows.size(), 1) / 2;
    labels[static_cast<std::int32_t>(line)] = grouped(row);
  }
  return labels;
}

/// The lines of pixels with what stands beside them.
std::string body(const MaskDrawing& drawing, const Placement* placement, Size size,
                 const TerminalStyle& style) {
  const HalfBlocks pixels = painted(drawing, size);
  std::vector<std::string> colours;
  for (const Group& group : drawing.groups) colours.push_back(group.colour);
  const std::string indent(kLabelWidth, ' ');
  std::string text = indent + key_axis(drawing.keys, size.width) + "\n";
  text += indent + pixels.border(true, style) + (placement != nullptr ? " ranks" : "") + "\n";
  const auto labels = row_labels(drawing.rows, pixels.num_lines(), size.height);
  for (std::int32_t line = 0; line < pixels.num_lines(); ++line) {
    const auto label = labels.find(line);
    text += right_aligned(label == labels.end() ? "" : label->second, kLabelWidth - 1) + " ";
    text += pixels.line(line, colours, style);
    if (placement != nullptr && drawing.rows.size() > 0) {
      const Range upper = share(drawing.rows, 2 * line, size.height);
      const Range lower = share(drawing.rows, std::min(2 * line + 1, size.height - 1), size.height);
      text += " " + ranks_text(ranks_of(*placement, {upper.begin, lower.end}));
    }
    text += "\n";
  }
  return text + right_aligned(grouped(drawing.rows.end), kLabelWidth - 1) + " " +
         pixels.border(false, style) + "\n";
}

/// Shares of the work, in columns; of very many ranks the largest and the least.
std::string legend(const std::vector<Group>& groups, bool is_of_ranks, const TerminalStyle& style) {
  std::int64_t total = 0;
  for (const Group& group : groups) total += group.pairs;
  const auto share_text = [&](const Group& group) {
    return group.name + ": " +
           percent_text(static_cast<double>(group.pairs), static_cast<double>(total));
  };
  std::string text = is_of_ranks ? "rank: share of work\n" : "slice type: share of work\n";
  if (groups.size() > kMostListed) {
    const auto [least, most] = std::ranges::minmax_element(groups, {}, &Group::pairs);
    return text + "of " + std::to_string(groups.size()) + " ranks the most " + share_text(*most) +
           ", the least " + share_text(*least) + "\n";
  }
  constexpr std::int32_t kRankColumn = 14, kTypeColumn = 26;
  const std::int32_t column = is_of_ranks ? kRankColumn : kTypeColumn;
  std::int32_t used = 0;
  for (const Group& group : groups) {
    if (!is_of_ranks && group.pairs == 0) continue;
    if (used + column > style.width) {
      text.erase(text.find_last_not_of(' ') + 1);
      text += "\n";
      used = 0;
    }
    const std::string mark = style.has_colour ? (style.is_ascii ? "#" : "█") : "";
    const std::string indent(is_of_ranks && group.name.size() < 4 ? 4 - group.name.size() : 0, ' ');
    const std::size_t room = static_cast<std::size_t>(column) - (mark.empty() ? 0 : 1);
    text += coloured(mark, group.colour, style) + left_aligned(indent + share_text(group), room);
    used += column;
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

}  // namespace

std::string mask_text(const Mask& mask, const Placement* placement, std::string_view title,
                      const TerminalStyle& style, const MaskPart& part) {
  const MaskDrawing drawing = mask_drawing(mask, placement, part);
  const std::int32_t beside = kLabelWidth + 2 + (placement != nullptr ? kRanksWidth : 0);
  const std::int32_t side = std::clamp(style.width - beside, 8, kLongestSide);
  return std::string(title) + "\n" + drawing.summary + "\n" +
         body(drawing, placement, size_of(drawing, side), style) +
         legend(drawing.groups, placement != nullptr, style);
}

}  // namespace magi::draw
