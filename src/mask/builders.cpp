// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "base/check.hpp"
#include "base/math.hpp"
#include "base/words.hpp"
#include "magi/mask_builders.hpp"
#include "mask/slice_lists.hpp"

namespace magi {
namespace {

void require_at_least(std::string_view name, std::int32_t value, std::int32_t low) {
  if (value < low) throw invalid(name, value, std::to_string(low) + " or more");
}

void require_row_counts(std::int32_t rows_q, std::int32_t rows_k) {
  validate(Mask{rows_q, rows_k, {}});
}

/// rows: how many there are, of what `whose` says.
void require_range(const std::string& name, Range range, std::int32_t rows,
                   std::string_view whose) {
  if (range.begin < 0 || range.begin > range.end || range.end > rows) {
    throw invalid(
        name, std::to_string(range.begin) + ":" + std::to_string(range.end),
        "0 <= begin <= end <= " + std::to_string(rows) + ", the rows of " + std::string(whose));
  }
}

void require_prefix_sums(std::string_view name, std::span<const std::int32_t> sums) {
  if (sums.empty()) throw invalid(name, "empty", "prefix sums that start with 0");
  if (sums[0] != 0) throw invalid(element_name(name, 0), sums[0], "0");
  for (std::size_t i = 1; i < sums.size(); ++i) {
    if (sums[i] < sums[i - 1] || sums[i] > kMaxRows) {
      throw invalid(element_name(name, i), sums[i],
                    std::to_string(sums[i - 1]) + " to " + std::to_string(kMaxRows));
    }
  }
}

void require_window(Window window) {
  require_at_least("window.left", window.left, -1);
  require_at_least("window.right", window.right, -1);
}

/// A mask over packed documents, square.
Mask packed(std::span<const std::int32_t> cu_seqlens) {
  require_prefix_sums("cu_seqlens", cu_seqlens);
  return {cu_seqlens.back(), cu_seqlens.back(), {}};
}

std::size_t num_documents(std::span<const std::int32_t> cu_seqlens) {
  return cu_seqlens.size() - 1;
}

Range document(std::span<const std::int32_t> cu_seqlens, std::size_t index) {
  return {cu_seqlens[index], cu_seqlens[index + 1]};
}

/// Refuses before the first of too many slices is made.
void require_room(const Mask& mask, std::int64_t num_more) {
  const std::int64_t total = static_cast<std::int64_t>(mask.slices.size()) + num_more;
  if (total > kMaxSlices) {
    throw invalid("number of slices", total, "at most " + std::to_string(kMaxSlices));
  }
}

void append(Mask& mask, const BandSlice& slice) {
  if (area(slice) > 0) mask.slices.push_back(slice);
}

/// The window as diagonals around the bottom-right aligned one, on all queries or on those that
/// the original keeps; not yet shrunk.
BandSlice window_slice(Range q, Range k, Window window, bool has_rows_above = false) {
  const std::int32_t first = has_rows_above ? q.begin : std::max(q.begin, q.end - k.size());
  BandSlice slice{first, q.end, k.begin, k.end};
  const std::int64_t aligned = std::int64_t{k.end} - q.end;
  const std::int32_t whole = std::max(q.end - first, k.size()) - 1;
  const auto bound = [&](std::int32_t reach) { return reach >= 0 && reach < whole; };
  if (bound(window.left)) slice.d_min = static_cast<std::int32_t>(aligned - window.left);
  if (bound(window.right)) slice.d_max = static_cast<std::int32_t>(aligned + window.right);
  return slice;
}

void append_document(Mask& mask, Range q, Range k, const DocumentRule& rule) {
  if (rule.window == Window{}) {
    append(mask, band_slice(q, k, rule.is_causal ? MaskType::Causal : MaskType::Full));
    return;
  }
  const BandSlice window = window_slice(q, k, rule.window, rule.has_rows_above);
  // Rows above the diagonal that the window leaves out.
  const std::int32_t num_unaligned = rule.has_rows_above ? 0 : std::max(q.size() - k.size(), 0);
  if (rule.num_global == 0 || (window.d_min == -kBandInfinity && num_unaligned == 0)) {
    append(mask, shrink(window));
    return;
  }
  const std::int32_t split = k.begin + std::min(rule.num_global, k.size());
  BandSlice global{q.begin, q.end, k.begin, split};
  if (window.d_max != kBandInfinity) global.d_max = window.d_max + num_unaligned;
  append(mask, shrink(global));
  append(mask, shrink(cut_k(window, {split, k.end})));
}

void append_steps(Mask& mask, Range rows, std::int32_t step) {
  if (step == 1) {
    append(mask, band_slice(rows, rows, MaskType::Causal));
    return;
  }
  require_room(mask, ceil_div<std::int64_t>(rows.size(), step));
  for (std::int32_t begin = rows.begin; begin < rows.end;) {
    const std::int32_t end = begin + std::min(step, rows.end - begin);
    append(mask, {begin, end, rows.begin, end});
    begin = end;
  }
}

/// Rows of each node in packed order; checks the tree.
std::vector<Range> node_rows(std::span<const PrefixTreeNode> nodes) {
  std::vector<Range> rows;
  std::int32_t begin = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::int32_t left = kMaxRows - begin;
    if (nodes[i].rows < 0 || nodes[i].rows > left) {
      throw invalid(element_name("nodes", i) + ".rows", nodes[i].rows,
                    "0 to " + std::to_string(left));
    }
    const auto last = static_cast<std::int64_t>(i) - 1;
    if (nodes[i].parent < -1 || nodes[i].parent > last) {
      throw invalid(element_name("nodes", i) + ".parent", nodes[i].parent,
                    "-1 to " + std::to_string(last));
    }
    rows.push_back({begin, begin + nodes[i].rows});
    begin = rows.back().end;
  }
  return rows;
}

}  // namespace

Mask mask_from_ranges(std::span<const Range> q_ranges, std::span<const Range> k_ranges,
                      std::span<const MaskType> types, std::int32_t rows_q, std::int32_t rows_k) {
  require_row_counts(rows_q, rows_k);
  const std::size_t count = q_ranges.size();
  if (k_ranges.size() != count) {
    throw invalid("number of k_ranges", k_ranges.size(),
                  std::to_string(count) + ", the number of q_ranges");
  }
  if (types.size() != count && types.size() != 1) {
    throw invalid("number of types", types.size(),
                  "1 or " + std::to_string(count) + ", the number of q_ranges");
  }
  Mask mask{rows_q, rows_k, {}};
  mask.slices.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    require_range(element_name("q_ranges", i), q_ranges[i], rows_q, "q");
    require_range(element_name("k_ranges", i), k_ranges[i], rows_k, "k");
    const std::size_t which = types.size() == 1 ? 0 : i;
    const auto code = static_cast<std::int32_t>(types[which]);
    if (code < 0 || code > 3) throw invalid(element_name("types", which), code, "0, 1, 2, 3");
    mask.slices.push_back(band_slice(q_ranges[i], k_ranges[i], types[which]));
  }
  return mask;
}

Mask mask_from_window(Range q, Range k, Window window, std::int32_t rows_q, std::int32_t rows_k) {
  require_row_counts(rows_q, rows_k);
  require_range("q range", q, rows_q, "q");
  require_range("k range", k, rows_k, "k");
  require_window(window);
  Mask mask{rows_q, rows_k, {}};
  append(mask, shrink(window_slice(q, k, window)));
  return mask;
}

Mask mask_from_cu_seqlens(std::span<const std::int32_t> cu_seqlens_q,
                          std::span<const std::int32_t> cu_seqlens_k, const DocumentRule& rule) {
  require_prefix_sums("cu_seqlens_q", cu_seqlens_q);
  require_prefix_sums("cu_seqlens_k", cu_seqlens_k);
  if (cu_seqlens_k.size() != cu_seqlens_q.size()) {
    throw invalid("length of cu_seqlens_k", cu_seqlens_k.size(),
                  std::to_string(cu_seqlens_q.size()) + ", the length of cu_seqlens_q");
  }
  require_window(rule.window);
  require_at_least("num_global", rule.num_global, 0);
  if (rule.is_causal && rule.window != Window{}) {
    throw invalid("window with is_causal",
                  std::to_string(rule.window.left) + ":" + std::to_string(rule.window.right),
                  "-1:-1 (a causal window is left:0 without is_causal)");
  }
  Mask mask{cu_seqlens_q.back(), cu_seqlens_k.back(), {}};
  for (std::size_t i = 0; i < num_documents(cu_seqlens_q); ++i) {
    append_document(mask, document(cu_seqlens_q, i), document(cu_seqlens_k, i), rule);
  }
  return mask;
}

Mask mask_block_causal(std::span<const std::int32_t> cu_seqlens, std::int32_t block) {
  Mask mask = packed(cu_seqlens);
  require_at_least("block", block, 1);
  for (std::size_t i = 0; i < num_documents(cu_seqlens); ++i) {
    append_steps(mask, document(cu_seqlens, i), block);
  }
  return mask;
}

Mask mask_prefix_lm(std::span<const std::int32_t> cu_seqlens,
                    std::span<const std::int32_t> prefix_lengths) {
  Mask mask = packed(cu_seqlens);
  if (prefix_lengths.size() != num_documents(cu_seqlens)) {
    throw invalid("number of prefix_lengths", prefix_lengths.size(),
                  std::to_string(num_documents(cu_seqlens)) + ", the number of documents");
  }
  for (std::size_t i = 0; i < prefix_lengths.size(); ++i) {
    require_at_least(element_name("prefix_lengths", i), prefix_lengths[i], 0);
    const Range rows = document(cu_seqlens, i);
    const std::int32_t split = rows.begin + std::min(prefix_lengths[i], rows.size());
    append(mask, {rows.begin, split, rows.begin, split});
    append(mask, band_slice({split, rows.end}, rows, MaskType::Causal));
  }
  return mask;
}

Mask mask_chunk_causal(std::span<const std::int32_t> cu_seqlens, std::int32_t chunk,
                       std::int32_t num_previous) {
  Mask mask = packed(cu_seqlens);
  require_at_least("chunk", chunk, 1);
  require_at_least("num_previous", num_previous, -1);
  const std::int64_t reach = num_previous < 0 ? kMaxRows : std::int64_t{num_previous} * chunk;
  for (std::size_t i = 0; i < num_documents(cu_seqlens); ++i) {
    const Range rows = document(cu_seqlens, i);
    // The leading chunks that reach back to the start are one causal slice.
    std::int64_t length = reach + chunk;
    require_room(mask, 1 + std::max<std::int64_t>(rows.size() - length, 0) / chunk);
    for (std::int32_t begin = rows.begin; begin < rows.end; length = chunk) {
      const auto end = begin + static_cast<std::int32_t>(
                                   std::min<std::int64_t>(length, std::int64_t{rows.end} - begin));
      const std::int64_t first = std::max<std::int64_t>(rows.begin, begin - reach);
      append(mask,
             band_slice({begin, end}, {static_cast<std::int32_t>(first), end}, MaskType::Causal));
      begin = end;
    }
  }
  return mask;
}

Mask mask_prefix_tree(std::span<const PrefixTreeNode> nodes) {
  const std::vector<Range> rows = node_rows(nodes);
  const std::int32_t total = rows.empty() ? 0 : rows.back().end;
  Mask mask{total, total, {}};
  // For each node that has rows, those of the path from its root to itself, neighbours joined,
  // ascending because a parent comes first.
  std::vector<std::vector<Range>> paths(nodes.size());
  // The nearest node with rows on a node's path, the node itself included; -1: none.
  std::vector<std::int32_t> nearest(nodes.size(), -1);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].parent >= 0) nearest[i] = nearest[static_cast<std::size_t>(nodes[i].parent)];
    if (rows[i].empty()) continue;
    std::vector<Range>& path = paths[i];
    if (nearest[i] >= 0) path = paths[static_cast<std::size_t>(nearest[i])];
    nearest[i] = static_cast<std::int32_t>(i);
    if (!path.empty() && path.back().end == rows[i].begin) {
      path.back().end = rows[i].end;
    } else {
      path.push_back(rows[i]);
    }
    require_room(mask, static_cast<std::int64_t>(path.size()));
    for (const Range keys : path) {
      const bool is_last = keys.end == rows[i].end;
      append(mask, band_slice(rows[i], keys, is_last ? MaskType::Causal : MaskType::Full));
    }
  }
  return mask;
}

}  // namespace magi
