// SPDX-License-Identifier: Apache-2.0
#include "common/text_table.hpp"

#include <algorithm>

namespace magi::cli {
namespace {

std::string padded(const std::string& text, std::size_t width, bool is_left) {
  const std::string space(width - std::min(width, text.size()), ' ');
  return is_left ? text + space : space + text;
}

}  // namespace

std::string text_table(const std::vector<TableLine>& lines, std::size_t num_left) {
  std::string text;
  for (const TableLine& line : lines) {
    for (std::size_t column = 0; column < line.size(); ++column) {
      std::size_t width = 0;
      for (const TableLine& other : lines) width = std::max(width, other[column].size());
      text += (column == 0 ? "" : "  ") + padded(line[column], width, column < num_left);
    }
    text += '\n';
  }
  return text;
}

}  // namespace magi::cli
