// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "magi/plan.hpp"

// Transfers as a node sees them: which of its ranks read which rows of an owner.
namespace magi::planner {

/// A run of rows of one owner that a rank of a node reads: what a sweep needs of a transfer, beside
/// its neighbours in memory.
struct Reading {
  std::int32_t begin = 0;  ///< rows of the owner
  std::int32_t end = 0;
  std::int32_t to_row = 0;  ///< where `begin` lies in the reader's segment
  std::int32_t reader = 0;  ///< rank
};

/// The rows that the ranks of one node read of one owner in one segment, ordered by `begin`.
struct NodeGroup {
  Space space = Space::Keys;
  std::int16_t segment = 0;
  std::int32_t node = 0;
  std::int32_t owner = 0;
  std::span<const Reading> readings;
};

/// Whether a row of a group has several readers.
inline bool has_shared_rows(const NodeGroup& group) {
  std::int32_t end = 0;
  for (const Reading& reading : group.readings) {
    if (reading.begin < end) return true;
    end = reading.end;
  }
  return false;
}

/// Sorts the transfers to one node after the other into groups. Transfers are ordered by (space,
/// dst), so those to a node stand together and fit into a cache.
class NodeGroups {
 public:
  /// The plan must have nodes and outlive the object.
  explicit NodeGroups(const Plan& plan);

  /// visit(NodeGroup), ordered by (space, node, segment, owner), of segments for which
  /// is_wanted(space, segment) holds.
  template <typename IsWanted, typename Visit>
  void visit(IsWanted is_wanted, Visit visit_group) {
    for (std::span<const Transfer> rest = plan_.transfers; !rest.empty();) {
      const std::span<const Transfer> to_node = take_node(rest);
      const Space space = to_node.front().space;
      const auto is_in = [&](const Transfer& t) { return is_wanted(space, t.dst_segment); };
      if (std::ranges::none_of(to_node, is_in)) continue;
      sort(to_node, is_in);
      for (std::size_t b = 0; b + 1 < begin_.size(); ++b) {
        const auto segment = static_cast<std::int16_t>(b / num_ranks_);
        if (begin_[b] == begin_[b + 1] || !is_wanted(space, segment)) continue;
        visit_group(NodeGroup{.space = space,
                              .segment = segment,
                              .node = to_node.front().dst / plan_.config.devices_per_node,
                              .owner = static_cast<std::int32_t>(b % num_ranks_),
                              .readings = in_order(b)});
      }
    }
  }

 private:
  /// Takes the transfers of one space to one node off the front.
  std::span<const Transfer> take_node(std::span<const Transfer>& rest) const;

  std::size_t bucket_of(const Transfer& t) const {
    return static_cast<std::size_t>(t.dst_segment) * num_ranks_ + static_cast<std::size_t>(t.src);
  }

  template <typename IsIn>
  void sort(std::span<const Transfer> transfers, IsIn is_in) {
    std::ranges::fill(begin_, 0);
    for (const Transfer& t : transfers) {
      if (is_in(t)) ++begin_[bucket_of(t) + 1];
    }
    for (std::size_t b = 1; b < begin_.size(); ++b) begin_[b] += begin_[b - 1];
    readings_.resize(begin_.back());
    next_.assign(begin_.begin(), begin_.end() - 1);
    for (const Transfer& t : transfers) {
      if (!is_in(t)) continue;
      readings_[next_[bucket_of(t)]++] = {t.src_row, t.src_row + t.num_rows, t.dst_row, t.dst};
    }
  }

  std::span<const Reading> in_order(std::size_t bucket) {
    const std::span<Reading> readings =
        std::span(readings_).subspan(begin_[bucket], begin_[bucket + 1] - begin_[bucket]);
    std::ranges::sort(readings, {}, &Reading::begin);
    return readings;
  }

  const Plan& plan_;
  std::size_t num_ranks_;
  std::vector<std::size_t> begin_;  ///< [num_segments * num_ranks + 1], by (segment, owner)
  std::vector<std::size_t> next_;
  std::vector<Reading> readings_;
};

/// Cuts a group into the runs of rows that the same ranks read. Kept from group to group, as its
/// memory is.
class ReaderSweep {
 public:
  /// visit(rows, readings): the rows of the owner, and which readings have them.
  template <typename Visit>
  void run(const NodeGroup& group, Visit visit) {
    active_.clear();
    auto next = group.readings.begin();
    for (std::int32_t row = 0; next != group.readings.end() || !active_.empty();) {
      if (active_.empty()) row = next->begin;
      while (next != group.readings.end() && next->begin == row) active_.push_back(&*next++);
      std::int32_t end =
          next == group.readings.end() ? std::numeric_limits<std::int32_t>::max() : next->begin;
      for (const Reading* reading : active_) end = std::min(end, reading->end);
      visit(Range{row, end}, std::span<const Reading* const>(active_));
      std::erase_if(active_, [end](const Reading* reading) { return reading->end == end; });
      row = end;
    }
  }

 private:
  std::vector<const Reading*> active_;
};

}  // namespace magi::planner
