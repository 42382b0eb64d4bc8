// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "magi/mask.hpp"

// Front ends: each turns a user's description into a valid Mask without overlaps (except where the
// user names the slices), and throws InvalidArgument (argument, value, values allowed) on bad
// input. Documents and ranges without a visible pair give no slice.
namespace magi {

/// Lists of (q range, k range, type), one slice for each, in order. `types` has one entry per range
/// pair, or exactly one for all.
Mask mask_from_ranges(std::span<const Range> q_ranges, std::span<const Range> k_ranges,
                      std::span<const MaskType> types, std::int32_t rows_q, std::int32_t rows_k);

/// The number of keys before (left) and after (right) a query's own diagonal position it sees; -1
/// means no bound on that side.
struct Window {
  std::int32_t left = -1;
  std::int32_t right = -1;
  friend bool operator==(const Window&, const Window&) = default;
};

/// Sliding window on one (q, k) pair of ranges, one slice. The diagonal is aligned bottom-right:
/// the last query stands at the last key. As in MagiAttention, of more queries than keys only
/// the last k.size() see anything, and a bound of k.size() - 1 or more is no bound.
Mask mask_from_window(Range q, Range k, Window window, std::int32_t rows_q, std::int32_t rows_k);

/// The rule by which queries of a packed document see its keys. Neither causal nor a window: fully.
struct DocumentRule {
  bool is_causal = false;  ///< bottom-right aligned; excludes a window, as in MagiAttention
  Window window = {};      ///< as in mask_from_window
  /// Leading keys of every document that the left bound of the window does not hide; the right
  /// bound does hide them, so that causality is kept. Of more queries than keys all see them, and
  /// the right bound counts from the first query. Without a window it changes nothing.
  std::int32_t num_global = 0;
  /// If there are more queries than keys under a window, whether those above the diagonal see the
  /// keys that the window reaches, as in FlashAttention, or none, as in MagiAttention. With them
  /// the window's right bound counts from the diagonal for global keys, too.
  bool has_rows_above = false;
};

/// Packed documents given by prefix sums, FlashAttention style ([0, ..., total], non-decreasing).
/// One slice per document, two where global keys lie outside the window.
Mask mask_from_cu_seqlens(std::span<const std::int32_t> cu_seqlens_q,
                          std::span<const std::int32_t> cu_seqlens_k, const DocumentRule& rule);

/// Packed documents with steps: inside a document, blocks of `block` queries see all keys up to the
/// end of their own block. One slice per block.
Mask mask_block_causal(std::span<const std::int32_t> cu_seqlens, std::int32_t block);

/// Packed documents; the first prefix_lengths[i] keys of document i are visible to all its rows
/// (the whole document if it is shorter), the rest is causal. At most two slices per document.
Mask mask_prefix_lm(std::span<const std::int32_t> cu_seqlens,
                    std::span<const std::int32_t> prefix_lengths);

/// A node of a prefix tree, in packed order: `parent` is an earlier index or -1 for a root.
struct PrefixTreeNode {
  std::int32_t parent = -1;
  std::int32_t rows = 0;
};
/// Nodes attend fully to their ancestors and causally to themselves; shared nodes are stored once.
/// Ancestors that are neighbours in the packed order share a slice.
Mask mask_prefix_tree(std::span<const PrefixTreeNode> nodes);

/// Packed documents cut in chunks of `chunk`: a query sees its own chunk causally and the
/// `num_previous` chunks before it fully (0: none, -1: all, which is plain causal). One slice per
/// chunk, and one for the leading chunks that reach back to the document's start. Queries that see
/// all of their own chunk are mask_block_causal.
Mask mask_chunk_causal(std::span<const std::int32_t> cu_seqlens, std::int32_t chunk,
                       std::int32_t num_previous);

/// Slices that hold exactly the non-zero entries of a row-major [rows_q, rows_k] matrix, each once.
/// Runs of keys that stay or move by one key per row continue a slice, so a matrix that is full, a
/// causal triangle, a window or any other band gives one slice.
Mask mask_from_matrix(std::span<const std::uint8_t> matrix, std::int32_t rows_q,
                      std::int32_t rows_k);

/// Reads {"rows_q": n, "rows_k": n, "slices": [...]}, a slice being [q0, q1, k0, k1, d_min, d_max]
/// (null for no bound) or {"q": [begin, end], "k": [begin, end], "type": "causal"}; unknown and
/// repeated keys are refused. Or, with "form" as the first key, the description of another
/// program: {"form": "tree", "parents": [...], "lengths": [...]}; docs/masks.md lists all. Whatever
/// the text, the only exception is InvalidArgument.
Mask mask_from_json(std::string_view text);
/// A field of a form by its name: the number of an integer, 0 or 1 of a flag, the numbers of a list
/// or of all rows of a table, of which row i is numbers[offsets[i]] to numbers[offsets[i + 1] - 1].
struct FormField {
  std::string_view name;
  std::span<const std::int32_t> numbers;
  std::span<const std::int64_t> offsets = {};
};
/// Does what mask_from_json does for a text with "form" and these keys, whose numbers the caller
/// holds.
Mask mask_from_form(std::string_view form, std::span<const FormField> fields);
/// Whether the first key of a JSON text is that of a mask, not of a plan.
bool is_mask_json(std::string_view text);
/// The mask as JSON, one slice per line; mask_from_json gives the same mask back.
std::string mask_to_json(const Mask& mask);

}  // namespace magi
