// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/mask_builders.hpp"

namespace magi::cli {

/// Packed trees of `rows` rows in all, up to six nodes deep, 2 to 4 children, 64 to rows / 8 rows a
/// node, half as many at most with each step down. The same trees as prefix_tree of
/// bench/attention_masks.py, so that both benches time one mask.
std::vector<PrefixTreeNode> bench_prefix_tree(std::int32_t rows);

}  // namespace magi::cli
