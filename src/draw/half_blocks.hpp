// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "draw/pictures.hpp"

namespace magi::draw {

/// Pixels of which a character shows two, one above the other, between two borders.
class HalfBlocks {
 public:
  static constexpr std::int32_t kEmpty = -1;

  /// An even number of rows is made of an odd one.
  HalfBlocks(std::int32_t width, std::int32_t height);

  std::int32_t width() const { return width_; }
  std::int32_t num_lines() const { return height_ / 2; }

  /// Paints [begin, end) of a row with an index of a colour, where nothing is painted yet.
  void paint(std::int32_t row, std::int32_t begin, std::int32_t end, std::int32_t colour);

  /// A line with its borders, without an end of line. `colours`: "#rrggbb" by index.
  std::string line(std::int32_t index, const std::vector<std::string>& colours,
                   const TerminalStyle& style) const;
  /// The border above the first line, or below the last.
  std::string border(bool is_upper, const TerminalStyle& style) const;

 private:
  std::int32_t at(std::int32_t row, std::int32_t column) const {
    return pixels_[static_cast<std::size_t>(row) * static_cast<std::size_t>(width_) +
                   static_cast<std::size_t>(column)];
  }

  std::int32_t width_;
  std::int32_t height_;
  std::vector<std::int32_t> pixels_;
};

/// `text` in a colour where the style has any.
std::string coloured(std::string_view text, std::string_view colour, const TerminalStyle& style);

/// `text` in a field of `width` columns: to the right end, or to the left. ASCII alone.
std::string right_aligned(std::string_view text, std::size_t width);
std::string left_aligned(std::string_view text, std::size_t width);

/// A line of `width` columns with each label at its place, those that would touch an earlier one
/// left out; the last is kept. Places are columns from 0 to width; labels are ASCII.
struct AxisLabel {
  double place = 0.0;
  std::string text;
};
std::string axis_line(const std::vector<AxisLabel>& labels, std::int32_t width);

}  // namespace magi::draw
