// SPDX-License-Identifier: Apache-2.0
#include "draw/half_blocks.hpp"

#include <algorithm>
#include <cmath>

namespace magi::draw {
namespace {

/// "38;2;r;g;b": a colour as terminals take it; 38 is that of the ink, 48 of the ground.
std::string colour_code(int place, std::string_view colour) {
  const auto part = [&](std::size_t at) {
    return std::to_string(std::stoi(std::string(colour.substr(at, 2)), nullptr, 16));
  };
  return std::to_string(place) + ";2;" + part(1) + ";" + part(3) + ";" + part(5);
}

struct Glyphs {
  std::string_view none, upper, lower, both;
  std::string_view side, top_left, top_right, bottom_left, bottom_right, rule;
};
constexpr Glyphs kBlocks{" ", "▀", "▄", "█", "│", "┌", "┐", "└", "┘", "─"};
constexpr Glyphs kAscii{" ", "'", ".", "#", "|", "+", "+", "+", "+", "-"};

const Glyphs& glyphs_of(const TerminalStyle& style) { return style.is_ascii ? kAscii : kBlocks; }

/// Characters with the escape sequences between them, which are written where they change.
class Ink {
 public:
  explicit Ink(const TerminalStyle& style) : has_colour_(style.has_colour) {}

  void add(std::string_view glyph, const std::string& codes) {
    if (has_colour_ && codes != codes_) {
      text_ += codes.empty() ? "\x1b[0m" : "\x1b[0;" + codes + "m";
      codes_ = codes;
    }
    text_ += glyph;
  }
  std::string finish() && {
    add("", "");
    return std::move(text_);
  }

 private:
  bool has_colour_;
  std::string codes_;
  std::string text_;
};

}  // namespace

HalfBlocks::HalfBlocks(std::int32_t width, std::int32_t height)
    : width_(width),
      height_(height + height % 2),
      pixels_(static_cast<std::size_t>(width_) * static_cast<std::size_t>(height_), kEmpty) {}

void HalfBlocks::paint(std::int32_t row, std::int32_t begin, std::int32_t end,
                       std::int32_t colour) {
  for (std::int32_t column = begin; column < end; ++column) {
    std::int32_t& pixel = pixels_[static_cast<std::size_t>(row) * static_cast<std::size_t>(width_) +
                                  static_cast<std::size_t>(column)];
    if (pixel == kEmpty) pixel = colour;
  }
}

std::string HalfBlocks::line(std::int32_t index, const std::vector<std::string>& colours,
                             const TerminalStyle& style) const {
  const Glyphs& glyphs = glyphs_of(style);
  const auto code = [&](int place, std::int32_t colour) {
    return colour_code(place, colours[static_cast<std::size_t>(colour)]);
  };
  Ink ink(style);
  ink.add(glyphs.side, "");
  for (std::int32_t column = 0; column < width_; ++column) {
    const std::int32_t upper = at(2 * index, column), lower = at(2 * index + 1, column);
    if (upper == kEmpty && lower == kEmpty) {
      ink.add(glyphs.none, "");
    } else if (lower == kEmpty) {
      ink.add(glyphs.upper, code(38, upper));
    } else if (upper == kEmpty) {
      ink.add(glyphs.lower, code(38, lower));
    } else if (upper == lower || style.is_ascii) {
      ink.add(glyphs.both, code(38, upper));
    } else {
      // Without colours two kinds of pixels are one block.
      ink.add(style.has_colour ? glyphs.upper : glyphs.both,
              code(38, upper) + ";" + code(48, lower));
    }
  }
  ink.add(glyphs.side, "");
  return std::move(ink).finish();
}

std::string HalfBlocks::border(bool is_upper, const TerminalStyle& style) const {
  const Glyphs& glyphs = glyphs_of(style);
  std::string text(is_upper ? glyphs.top_left : glyphs.bottom_left);
  for (std::int32_t column = 0; column < width_; ++column) text += glyphs.rule;
  return text + std::string(is_upper ? glyphs.top_right : glyphs.bottom_right);
}

std::string coloured(std::string_view text, std::string_view colour, const TerminalStyle& style) {
  if (!style.has_colour) return std::string(text);
  return "\x1b[0;" + colour_code(38, colour) + "m" + std::string(text) + "\x1b[0m";
}

std::string right_aligned(std::string_view text, std::size_t width) {
  return std::string(text.size() < width ? width - text.size() : 0, ' ') + std::string(text);
}

std::string left_aligned(std::string_view text, std::size_t width) {
  return std::string(text) + std::string(text.size() < width ? width - text.size() : 0, ' ');
}

std::string axis_line(const std::vector<AxisLabel>& labels, std::int32_t width) {
  std::string line(static_cast<std::size_t>(width), ' ');
  const auto begin_of = [&](const AxisLabel& label) {
    const auto length = static_cast<std::int32_t>(label.text.size());
    const auto middle = static_cast<std::int32_t>(std::lround(label.place));
    return std::clamp(middle - length / 2, 0, std::max(width - length, 0));
  };
  if (labels.empty()) return line;
  const std::int32_t last_begin = begin_of(labels.back());
  std::int32_t free_from = 0;
  for (const AxisLabel& label : labels) {
    const bool is_last = &label == &labels.back();
    const std::int32_t begin = begin_of(label);
    const std::int32_t end = begin + static_cast<std::int32_t>(label.text.size());
    if (begin < free_from || (!is_last && end + 1 > last_begin) || end > width) continue;
    line.replace(static_cast<std::size_t>(begin), label.text.size(), label.text);
    free_from = end + 1;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace magi::draw
