// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace magi::cli {

using TableLine = std::vector<std::string>;

/// Lines of equally many cells as columns of a text; the first `num_left` are flush left.
std::string text_table(const std::vector<TableLine>& lines, std::size_t num_left);

}  // namespace magi::cli
