// SPDX-License-Identifier: Apache-2.0
#include "mask/band_grower.hpp"

#include <algorithm>
#include <utility>

namespace magi {

bool BandGrower::Growing::take(Range run) {
  const std::int32_t left = run.begin - last.begin;
  const std::int32_t right = run.end - last.end;
  if (left < 0 || left > 1 || right < 0 || right > 1) return false;
  if (left == 0 && left_moves) return false;
  if (right == 1 && right_rests) return false;
  left_moves = left == 1;
  right_rests = right == 0;
  right_moved = right_moved || right == 1;
  last = run;
  ++num_rows;
  return true;
}

BandSlice BandGrower::Growing::slice() const {
  BandSlice s{first_row, first_row + num_rows, first.begin, last.end};
  if (left_moves) s.d_min = last.begin - (first_row + num_rows - 1);
  if (right_moved) s.d_max = first.end - 1 - first_row;
  return shrink(s);
}

void BandGrower::close_all() {
  for (const Growing& last : growing_) slices_.push_back(last.slice());
  growing_.clear();
}

void BandGrower::add_row(std::int32_t row, std::span<const Range> runs) {
  if (row != next_row_) close_all();
  still_.clear();
  std::size_t open = 0;
  for (const Range run : runs) {
    for (; open < growing_.size() && growing_[open].last.begin < run.begin - 1; ++open) {
      slices_.push_back(growing_[open].slice());
    }
    if (open < growing_.size() && growing_[open].take(run)) {
      still_.push_back(growing_[open++]);
    } else {
      still_.push_back({.first_row = row, .first = run, .last = run});
    }
  }
  for (; open < growing_.size(); ++open) slices_.push_back(growing_[open].slice());
  std::swap(growing_, still_);
  next_row_ = row + 1;
}

std::vector<BandSlice> BandGrower::finish() {
  close_all();
  std::sort(slices_.begin(), slices_.end(), [](const BandSlice& a, const BandSlice& b) {
    return a.q0 != b.q0 ? a.q0 < b.q0 : a.k0 < b.k0;
  });
  return std::move(slices_);
}

}  // namespace magi
