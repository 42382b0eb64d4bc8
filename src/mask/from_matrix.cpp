// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "base/check.hpp"
#include "magi/mask_builders.hpp"

namespace magi {
namespace {

/// A slice that grows downwards row by row. A band's left edge rests, then moves by one key per
/// row; its right edge moves, then rests. A run continues the slice while it keeps to that.
class Growing {
 public:
  Growing(std::int32_t row, Range run) : first_row_(row), first_(run), last_(run) {}

  std::int32_t next_begin() const { return last_.begin; }

  /// Takes the run of the next row if the slice stays one band.
  bool take(Range run) {
    const std::int32_t left = run.begin - last_.begin;
    const std::int32_t right = run.end - last_.end;
    if (left < 0 || left > 1 || right < 0 || right > 1) return false;
    if (left == 0 && left_moves_) return false;
    if (right == 1 && right_rests_) return false;
    left_moves_ = left == 1;
    right_rests_ = right == 0;
    right_moved_ = right_moved_ || right == 1;
    last_ = run;
    ++num_rows_;
    return true;
  }

  BandSlice slice() const {
    BandSlice s{first_row_, first_row_ + num_rows_, first_.begin, last_.end};
    if (left_moves_) s.d_min = last_.begin - (first_row_ + num_rows_ - 1);
    if (right_moved_) s.d_max = first_.end - 1 - first_row_;
    return shrink(s);
  }

 private:
  std::int32_t first_row_;
  std::int32_t num_rows_ = 1;
  Range first_;
  Range last_;
  bool left_moves_ = false;
  bool right_moved_ = false;
  bool right_rests_ = false;
};

std::vector<Range> runs_of(std::span<const std::uint8_t> row) {
  std::vector<Range> runs;
  const auto end = static_cast<std::int32_t>(row.size());
  for (std::int32_t j = 0; j < end; ++j) {
    if (row[static_cast<std::size_t>(j)] == 0) continue;
    if (runs.empty() || runs.back().end != j) runs.push_back({j, j});
    runs.back().end = j + 1;
  }
  return runs;
}

}  // namespace

Mask mask_from_matrix(std::span<const std::uint8_t> matrix, std::int32_t rows_q,
                      std::int32_t rows_k) {
  Mask mask{rows_q, rows_k, {}};
  validate(mask);
  const std::int64_t pairs = std::int64_t{rows_q} * rows_k;
  if (static_cast<std::int64_t>(matrix.size()) != pairs) {
    throw invalid("size of the matrix", matrix.size(), std::to_string(pairs) + ", rows_q * rows_k");
  }
  const auto width = static_cast<std::size_t>(rows_k);
  std::vector<Growing> growing;  // ascending in keys; runs of a row leave gaps, so at most one fits
  for (std::int32_t i = 0; i < rows_q; ++i) {
    std::vector<Growing> still;
    std::size_t open = 0;
    for (const Range run : runs_of(matrix.subspan(static_cast<std::size_t>(i) * width, width))) {
      for (; open < growing.size() && growing[open].next_begin() < run.begin - 1; ++open) {
        mask.slices.push_back(growing[open].slice());
      }
      if (open < growing.size() && growing[open].take(run)) {
        still.push_back(growing[open++]);
      } else {
        still.emplace_back(i, run);
      }
    }
    for (; open < growing.size(); ++open) mask.slices.push_back(growing[open].slice());
    growing = std::move(still);
  }
  for (const Growing& last : growing) mask.slices.push_back(last.slice());
  std::sort(mask.slices.begin(), mask.slices.end(), [](const BandSlice& a, const BandSlice& b) {
    return a.q0 != b.q0 ? a.q0 < b.q0 : a.k0 < b.k0;
  });
  return mask;
}

}  // namespace magi
