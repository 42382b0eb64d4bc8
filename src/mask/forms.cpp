// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "base/check.hpp"
#include "magi/mask_runs.hpp"
#include "mask/form_masks.hpp"

namespace magi::forms {
namespace {

constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kHighest = std::numeric_limits<std::int32_t>::max();

constexpr Field kCausal{.name = "causal", .kind = Kind::Flag, .is_required = false};
constexpr Field kRowsQ{.name = "rows_q", .kind = Kind::Integer};
constexpr Field kRowsK{.name = "rows_k", .kind = Kind::Integer};
constexpr Field kOffsets{.name = "offsets", .high = kHighest};
constexpr Field kIntervals{.name = "intervals", .kind = Kind::Table};

constexpr Field kBlockMask[] = {kRowsQ,
                                kRowsK,
                                {.name = "block_size", .low = 1},
                                {.name = "kv_indices", .kind = Kind::Table},
                                {.name = "full_kv_indices", .kind = Kind::Table},
                                kOffsets,
                                kIntervals};
constexpr Field kCuSeqlens[] = {{.name = "cu_seqlens_q"},
                                {.name = "cu_seqlens_k", .is_required = false},
                                kCausal,
                                {.name = "window_size", .low = -1, .is_required = false}};
constexpr Field kDocumentIds[] = {{.name = "document_ids", .low = kLowest, .high = kHighest},
                                  kCausal,
                                  {.name = "padding_id",
                                   .kind = Kind::Integer,
                                   .low = kLowest,
                                   .high = kHighest,
                                   .is_required = false}};
constexpr Field kFlashMask[] = {{.name = "startend_row_indices", .kind = Kind::Table},
                                kCausal,
                                {.name = "rows_q", .kind = Kind::Integer, .is_required = false}};
constexpr Field kIntervalEnds[] = {{.name = "ends", .kind = Kind::Table}, kRowsK};
constexpr Field kRowIntervals[] = {kOffsets, kIntervals, kRowsK};
constexpr Field kMatrix[] = {{.name = "visible", .kind = Kind::Table, .high = 1}};
constexpr Field kPackedSeqParams[] = {{.name = "cu_seqlens_q"},
                                      {.name = "cu_seqlens_kv"},
                                      {.name = "cu_seqlens_q_padded", .is_required = false},
                                      {.name = "cu_seqlens_kv_padded", .is_required = false},
                                      kCausal};
constexpr Field kPrefixLm[] = {{.name = "cu_seqlens"}, {.name = "prefix_lengths"}};
constexpr Field kTokenIds[] = {
    {.name = "samples", .kind = Kind::Table, .low = kLowest, .high = kHighest}};
constexpr Field kTree[] = {{.name = "parents", .low = -1}, {.name = "lengths"}};
constexpr Field kWindow[] = {{.name = "rows", .kind = Kind::Integer},
                             {.name = "left", .kind = Kind::Integer, .low = -1},
                             {.name = "right", .kind = Kind::Integer, .low = -1}};

constexpr Form kForms[] = {
    {"block_mask", kBlockMask, of_block_mask},
    {"cu_seqlens", kCuSeqlens, of_cu_seqlens},
    {"document_ids", kDocumentIds, of_document_ids},
    {"flashmask", kFlashMask, of_flashmask},
    {"interval_ends", kIntervalEnds, of_interval_ends},
    {"intervals", kRowIntervals, of_intervals},
    {"matrix", kMatrix, of_matrix},
    {"packed_seq_params", kPackedSeqParams, of_packed_seq_params},
    {"prefix_lm", kPrefixLm, of_prefix_lm},
    {"token_ids", kTokenIds, of_token_ids},
    {"tree", kTree, of_tree},
    {"window", kWindow, of_window},
};

}  // namespace

std::span<const Form> all_forms() { return kForms; }

void check_count(std::string_view name, std::size_t found, std::size_t count,
                 std::string_view reason) {
  if (found == count) return;
  throw invalid("number of " + std::string(name), found,
                std::to_string(count) + ", " + std::string(reason));
}

void check_bounds(std::string_view name, std::span<const std::int32_t> bounds) {
  if (bounds.empty()) throw invalid(name, "empty", "bounds that begin with 0");
  if (bounds[0] != 0) throw invalid(element_name(name, 0), bounds[0], "0");
  for (std::size_t i = 1; i < bounds.size(); ++i) {
    if (bounds[i] < bounds[i - 1]) {
      throw invalid(element_name(name, i), bounds[i],
                    std::to_string(bounds[i - 1]) + " or more, as the one before it");
    }
  }
}

std::size_t width_of(std::string_view name, const Value& table) {
  if (table.num_rows() == 0) return 0;
  const std::size_t width = table.row(0).size();
  for (std::size_t i = 1; i < table.num_rows(); ++i) {
    if (table.row(i).size() != width) {
      throw invalid(element_name(name, i), "an array of " + std::to_string(table.row(i).size()),
                    std::to_string(width) + " integers, as " + element_name(name, 0));
    }
  }
  return width;
}

Mask compacted(Mask mask) {
  std::int64_t num_runs = mask.rows_q;
  for (const BandSlice& slice : mask.slices) num_runs += slice.q1 - slice.q0;
  if (num_runs > kMaxSlices) return mask;
  const RowRuns found = runs_of(mask);
  return mask_from_runs(found.offsets, found.runs, found.rows_k);
}

}  // namespace magi::forms
