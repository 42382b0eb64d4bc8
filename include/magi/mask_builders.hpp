// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "magi/mask.hpp"

// Front ends: each turns a user's description into a Mask, and throws InvalidArgument (argument,
// value, values allowed) on bad input.
namespace magi {

/// How a window bounds keys around a query's own diagonal position; -1 means no bound on that side.
struct Window {
  std::int32_t left = -1;
  std::int32_t right = -1;
};

/// The original's triple lists. `types` has one entry per range pair, or exactly one for all.
Mask mask_from_ranges(std::span<const Range> q_ranges, std::span<const Range> k_ranges,
                      std::span<const MaskType> types, std::int32_t rows_q, std::int32_t rows_k);

/// How queries of a packed document see its keys.
struct DocumentRule {
  bool is_causal = false;  ///< bottom-right aligned; excludes a window, as in the original
  Window window;           ///< around the bottom-right aligned diagonal
  std::int32_t num_global =
      0;  ///< leading keys of every document visible to all its rows (subject to causality)
};

/// Packed documents given by prefix sums, FlashAttention style ([0, ..., total], non-decreasing).
Mask mask_from_cu_seqlens(std::span<const std::int32_t> cu_seqlens_q,
                          std::span<const std::int32_t> cu_seqlens_k, const DocumentRule& rule);

/// Sliding window on one (q, k) pair of ranges, diagonal aligned bottom-right, one slice.
Mask mask_from_window(Range q, Range k, Window window, std::int32_t rows_q, std::int32_t rows_k);

/// Packed documents; inside one, blocks of `block` queries see all keys up to the end of their own
/// block.
Mask mask_block_causal(std::span<const std::int32_t> cu_seqlens, std::int32_t block);

/// Packed documents; the first prefix[i] keys of document i are visible to all its rows, the rest
/// is causal.
Mask mask_prefix_lm(std::span<const std::int32_t> cu_seqlens,
                    std::span<const std::int32_t> prefix_lengths);

/// A node of a prefix tree, in packed order: `parent` is an earlier index or -1 for a root.
struct PrefixTreeNode {
  std::int32_t parent = -1;
  std::int32_t rows = 0;
};
/// Nodes attend fully to their ancestors and causally to themselves; shared nodes are stored once.
Mask mask_prefix_tree(std::span<const PrefixTreeNode> nodes);

/// Packed documents cut in chunks of `chunk`: a query sees its own chunk causally and, when
/// `num_previous` > 0, that many earlier chunks fully.
Mask mask_chunk_causal(std::span<const std::int32_t> cu_seqlens, std::int32_t chunk,
                       std::int32_t num_previous);

/// Slices that hold exactly the non-zero entries of a row-major [rows_q, rows_k] matrix.
Mask mask_from_matrix(std::span<const std::uint8_t> matrix, std::int32_t rows_q,
                      std::int32_t rows_k);

/// Reads {"rows_q", "rows_k", "slices": [[q0, q1, k0, k1, d_min, d_max] | {"q": [..], "k": [..],
/// "type": ".."}]}; d_min / d_max may be null for no bound; unknown keys are refused.
Mask mask_from_json(std::string_view text);
std::string mask_to_json(const Mask& mask);

}  // namespace magi
