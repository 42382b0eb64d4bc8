// SPDX-License-Identifier: Apache-2.0
#include "plan/check/pair_edges.hpp"

#include <algorithm>
#include <bit>

#include "base/mix.hpp"

namespace magi::planner {
namespace {

// A point is a line and a row: 1 bit for the kind of line, 32 for the line (diagonals are shifted
// to be positive), 31 for the row. Rows, keys and diagonals stay within 2^30.
constexpr int kRowBits = 31;
constexpr std::uint64_t kDiagonalBit = std::uint64_t{1} << 32;
constexpr std::uint64_t kRowMask = (std::uint64_t{1} << kRowBits) - 1;

constexpr std::uint64_t key_line(std::int64_t key) { return static_cast<std::uint64_t>(key); }
constexpr std::uint64_t diagonal_line(std::int64_t diagonal) {
  return kDiagonalBit | static_cast<std::uint64_t>(diagonal + kBandInfinity);
}

}  // namespace

PairEdges::PairEdges(std::size_t num_slices)
    // A slice has about six ends of parts, most of which others share.
    : counts_(std::bit_ceil(std::max<std::size_t>(64, 8 * num_slices))) {}

void PairEdges::count(std::uint64_t point, std::int64_t times) {
  const std::size_t mask = counts_.size() - 1;
  const int shift = 64 - std::countr_zero(counts_.size());
  auto slot = static_cast<std::size_t>((point * kGoldenRatio) >> shift);
  while (counts_[slot].point != point) {
    if (counts_[slot].point == kNoPoint) {
      counts_[slot].point = point;
      ++num_counts_;
      break;
    }
    slot = (slot + 1) & mask;
  }
  counts_[slot].times += times;
  if (num_counts_ * 2 > counts_.size()) grow();
}

void PairEdges::grow() {
  std::vector<Count> old(counts_.size() * 2);
  old.swap(counts_);
  num_counts_ = 0;
  for (const Count& entry : old) {
    if (entry.times != 0) count(entry.point, entry.times);
  }
}

void PairEdges::add_part(std::uint64_t line, std::int64_t begin, std::int64_t end,
                         std::int64_t times) {
  if (begin >= end) return;
  count((line << kRowBits) | static_cast<std::uint64_t>(begin), times);
  count((line << kRowBits) | static_cast<std::uint64_t>(end), -times);
}

void PairEdges::add(const BandSlice& slice, std::int32_t times) {
  const BandSlice s = shrink(slice);
  if (s.q0 == s.q1) return;
  // Every row of a shrunk slice sees [low(i), high(i)): high = i + d_max + 1 up to a bend, then k1;
  // low = k0 up to a bend, then i + d_min.
  const std::int64_t high_bend =
      std::clamp<std::int64_t>(std::int64_t{s.k1} - s.d_max - 1, s.q0, s.q1);
  const std::int64_t low_bend = std::clamp<std::int64_t>(std::int64_t{s.k0} - s.d_min, s.q0, s.q1);
  add_part(key_line(s.k0), s.q0, low_bend, times);
  add_part(diagonal_line(s.d_min), low_bend, s.q1, times);
  add_part(diagonal_line(std::int64_t{s.d_max} + 1), s.q0, high_bend, -std::int64_t{times});
  add_part(key_line(s.k1), high_bend, s.q1, -std::int64_t{times});
}

std::vector<PairEdges::Part> PairEdges::parts_left(bool is_diagonal) const {
  std::vector<Count> left;
  for (const Count& entry : counts_) {
    const bool is_of_kind = ((entry.point >> kRowBits) & kDiagonalBit) != 0;
    if (entry.times != 0 && is_of_kind == is_diagonal) left.push_back(entry);
  }
  std::ranges::sort(left, {}, &Count::point);
  std::vector<Part> parts;
  std::int64_t times = 0;
  for (std::size_t i = 0; i + 1 < left.size(); ++i) {
    times += left[i].times;
    if (times == 0) continue;
    const std::uint64_t line = (left[i].point >> kRowBits) & (kDiagonalBit - 1);
    parts.push_back({.line = static_cast<std::int64_t>(line) - (is_diagonal ? kBandInfinity : 0),
                     .begin = static_cast<std::int64_t>(left[i].point & kRowMask),
                     .end = static_cast<std::int64_t>(left[i + 1].point & kRowMask),
                     .times = times});
  }
  return parts;
}

/// A part must cancel with the other kind's, row by row; each of those crosses it in one row at
/// most, so that one row more than there are others suffices to find a difference. The line that
/// crosses `line` in row i is line - i for a key and line + i for a diagonal: `sign`.
std::optional<std::int32_t> PairEdges::unmatched_row(const std::vector<Part>& parts, int sign,
                                                     const std::vector<Part>& others) {
  for (const Part& part : parts) {
    const auto most = static_cast<std::int64_t>(others.size()) + 1;
    for (std::int64_t row = part.begin; row < std::min(part.end, part.begin + most); ++row) {
      const std::int64_t line = part.line + sign * row;
      const auto next = std::partition_point(others.begin(), others.end(), [&](const Part& other) {
        return other.line != line ? other.line < line : other.end <= row;
      });
      const bool is_crossed = next != others.end() && next->line == line && next->begin <= row;
      if (!is_crossed || next->times != -part.times) return static_cast<std::int32_t>(row);
    }
  }
  return std::nullopt;
}

std::optional<std::int32_t> PairEdges::differing_row() const {
  const std::vector<Part> keys = parts_left(false);
  const std::vector<Part> diagonals = parts_left(true);
  const auto row = unmatched_row(keys, -1, diagonals);
  return row ? row : unmatched_row(diagonals, 1, keys);
}

}  // namespace magi::planner
