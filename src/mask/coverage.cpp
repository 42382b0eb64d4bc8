// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "magi/mask.hpp"

// A plane sweep (Shamos, Hoey, "Geometric intersection problems", FOCS 1976) in its kinetic form:
// between the rows where some slice starts, bends or ends, every edge stands still or moves by one
// key per row, so the sorted list of edges changes only where a moving edge overtakes a resting
// one. Between such rows the width of each gap is linear and its pairs are an arithmetic series.
namespace magi {
namespace {

struct Edge {
  std::int64_t at = 0;  ///< key position in the first row of the current stretch
  std::int32_t slope = 0;
  std::int32_t step = 0;  ///< +1 opens a slice, -1 closes one

  // At one place the resting edge comes first, as it stays behind.
  bool before(const Edge& other) const {
    return at != other.at ? at < other.at : slope < other.slope;
  }
};

/// The row from which the left edge moves, and the row up to which the right edge moves. Slices are
/// shrunk, so both are clamped to their rows.
std::int32_t left_bend(const BandSlice& s) {
  return s.d_min == -kBandInfinity ? s.q1 : std::clamp(s.k0 - s.d_min, s.q0, s.q1);
}
std::int32_t right_bend(const BandSlice& s) {
  return s.d_max == kBandInfinity ? s.q0 : std::clamp(s.k1 - 1 - s.d_max, s.q0, s.q1);
}

class Sweep {
 public:
  explicit Sweep(const Mask& mask) {
    for (std::size_t i = 0; i < mask.slices.size(); ++i) {
      const BandSlice tight = shrink(mask.slices[i]);
      if (tight.q0 == tight.q1) continue;
      slices_.emplace_back(tight, static_cast<std::int32_t>(i));
      for (const auto row : {tight.q0, tight.q1, left_bend(tight), right_bend(tight)}) {
        rows_.push_back(row);
      }
    }
    rows_.push_back(0);
    rows_.push_back(mask.rows_q);
    std::sort(rows_.begin(), rows_.end());
    rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
    count_unseen_keys(mask.rows_k);
    std::sort(slices_.begin(), slices_.end(),
              [](const auto& a, const auto& b) { return a.first.q0 < b.first.q0; });
  }

  Coverage run() {
    std::size_t next = 0;
    for (std::size_t r = 0; r + 1 < rows_.size(); ++r) {
      const std::int32_t row = rows_[r];
      std::erase_if(active_, [&](std::size_t s) { return slices_[s].first.q1 <= row; });
      for (; next < slices_.size() && slices_[next].first.q0 == row; ++next) {
        active_.push_back(next);
      }
      if (active_.empty()) {
        found_.empty_rows += rows_[r + 1] - row;
      } else {
        sweep_rows(row, rows_[r + 1]);
      }
    }
    return found_;
  }

 private:
  /// Rows [begin, end) in which no slice starts, bends or ends.
  void sweep_rows(std::int32_t begin, std::int32_t end) {
    edges_.clear();
    for (const std::size_t s : active_) {
      const BandSlice& slice = slices_[s].first;
      const Range keys = visible_keys(slice, begin);
      edges_.push_back({keys.begin, begin >= left_bend(slice) ? 1 : 0, 1});
      edges_.push_back({keys.end, begin < right_bend(slice) ? 1 : 0, -1});
    }
    std::sort(edges_.begin(), edges_.end(),
              [](const Edge& a, const Edge& b) { return a.before(b); });
    while (true) {
      const std::int32_t stop = first_overtaking(begin, end);
      count_gaps(begin, stop - begin);
      if (stop == end) return;
      for (Edge& edge : edges_) edge.at += std::int64_t{edge.slope} * (stop - begin);
      restore_order();
      begin = stop;
    }
  }

  /// The first row after `begin` in which the order of the edges is another, at most `end`. The
  /// first two edges to change places are neighbours.
  std::int32_t first_overtaking(std::int32_t begin, std::int32_t end) const {
    std::int64_t rows = end - begin;
    for (std::size_t e = 0; e + 1 < edges_.size(); ++e) {
      if (edges_[e].slope > edges_[e + 1].slope) {
        rows = std::min(rows, edges_[e + 1].at - edges_[e].at + 1);
      }
    }
    return begin + static_cast<std::int32_t>(rows);
  }

  /// Insertion sort: few edges changed places.
  void restore_order() {
    for (std::size_t e = 1; e < edges_.size(); ++e) {
      const Edge edge = edges_[e];
      std::size_t to = e;
      for (; to > 0 && edge.before(edges_[to - 1]); --to) edges_[to] = edges_[to - 1];
      edges_[to] = edge;
    }
  }

  void count_gaps(std::int32_t row, std::int64_t num_rows) {
    std::int32_t count = 0;
    std::int64_t first_twice = num_rows;
    for (std::size_t e = 0; e + 1 < edges_.size(); ++e) {
      count += edges_[e].step;
      const std::int64_t width = edges_[e + 1].at - edges_[e].at;
      const std::int64_t growth = edges_[e + 1].slope - edges_[e].slope;
      const std::int64_t pairs = width * num_rows + growth * (num_rows * (num_rows - 1) / 2);
      if (count == 0 || pairs == 0) continue;
      found_.visible_pairs += pairs;
      found_.max_multiplicity = std::max(found_.max_multiplicity, count);
      if (count == 1) continue;
      found_.overlapping_pairs += pairs;
      first_twice = std::min<std::int64_t>(first_twice, width > 0 ? 0 : 1);
    }
    if (!found_.first_overlap && first_twice < num_rows) {
      found_.first_overlap = overlap_in_row(row + static_cast<std::int32_t>(first_twice));
    }
  }

  /// The two lowest indices of slices that hold the row's first key held twice, of which there is
  /// one.
  std::pair<std::int32_t, std::int32_t> overlap_in_row(std::int32_t row) const {
    std::vector<std::pair<Range, std::int32_t>> keys;
    for (const std::size_t s : active_) {
      keys.emplace_back(visible_keys(slices_[s].first, row), slices_[s].second);
    }
    std::sort(keys.begin(), keys.end(),
              [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
    std::size_t twice = 1;
    for (std::int32_t end = keys[0].first.end; keys[twice].first.begin >= end; ++twice) {
      end = std::max(end, keys[twice].first.end);
      MAGI_CHECK(twice + 1 < keys.size());
    }
    const std::int32_t key = keys[twice].first.begin;
    std::vector<std::int32_t> holders;
    for (const auto& [range, index] : keys) {
      if (range.begin <= key && key < range.end) holders.push_back(index);
    }
    std::sort(holders.begin(), holders.end());
    return {holders[0], holders[1]};
  }

  /// Every key of a shrunk slice is seen, so the unseen ones lie outside the union of key ranges.
  void count_unseen_keys(std::int32_t rows_k) {
    std::sort(slices_.begin(), slices_.end(),
              [](const auto& a, const auto& b) { return a.first.k0 < b.first.k0; });
    std::int32_t end = 0;
    for (const auto& [slice, index] : slices_) {
      found_.unseen_keys += std::max(slice.k0 - end, 0);
      end = std::max(end, slice.k1);
    }
    found_.unseen_keys += rows_k - end;
  }

  std::vector<std::pair<BandSlice, std::int32_t>> slices_;  ///< shrunk, with their index
  std::vector<std::int32_t> rows_;   ///< where a slice starts, bends or ends, ascending
  std::vector<std::size_t> active_;  ///< positions in slices_ that see keys in the current rows
  std::vector<Edge> edges_;
  Coverage found_;
};

}  // namespace

Coverage check_coverage(const Mask& mask) {
  validate(mask);
  const std::int64_t counted = area(mask);
  Coverage found = Sweep(mask).run();
  found.counted_pairs = counted;
  return found;
}

}  // namespace magi
