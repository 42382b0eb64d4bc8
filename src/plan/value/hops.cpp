// SPDX-License-Identifier: Apache-2.0
#include "plan/value/hops.hpp"

#include <utility>

#include "plan/value/node_groups.hpp"

namespace magi {
namespace planner {
namespace {

/// Finds the first reader of some rows: the one whose place in its node follows the owner's first.
class FirstReader {
 public:
  FirstReader(const NodeGroup& group, std::int32_t node_size)
      : size_(node_size), facing_(group.node * node_size + group.owner % node_size) {}

  const Reading* of(std::span<const Reading* const> readers) const {
    return *std::ranges::min_element(readers, {}, [this](const Reading* reading) {
      const std::int32_t behind = reading->reader - facing_;
      return behind < 0 ? behind + size_ : behind;
    });
  }

 private:
  std::int32_t size_;
  std::int32_t facing_;  ///< the rank at the owner's place
};

Hop hop_of(const NodeGroup& group, const Reading& reading, Range rows) {
  return {.space = group.space,
          .segment = group.segment,
          .from = group.owner,
          .to = reading.reader,
          .from_row = rows.begin,
          .to_row = reading.to_row + rows.begin - reading.begin,
          .num_rows = rows.size()};
}

void add_hops(const NodeGroup& group, std::span<const Reading* const> readers, Range rows,
              std::int32_t node_size, std::vector<Hop>& hops) {
  const Reading* first = FirstReader(group, node_size).of(readers);
  const Hop entering = hop_of(group, *first, rows);
  hops.push_back(entering);
  for (const Reading* reading : readers) {
    if (reading == first) continue;
    Hop onward = hop_of(group, *reading, rows);
    onward.is_onward = true;
    onward.from = entering.to;
    onward.from_row = entering.to_row;
    hops.push_back(onward);
  }
}

/// Sums the rows that go by node for each pair of ranks, node by node.
class PairSums {
 public:
  explicit PairSums(const Plan& plan)
      : node_size_(plan.config.devices_per_node),
        entering_(static_cast<std::size_t>(node_size_)),
        onward_(entering_.size() * entering_.size()) {}

  void add(const NodeGroup& group) {
    const bool is_next =
        group.node != last_.node || group.segment != last_.segment || group.space != last_.space;
    if (is_next) finish();
    last_ = group;
    const std::int32_t begin = group.node * node_size_;
    if (group.owner / node_size_ == group.node || !has_shared_rows(group)) {
      for (const Reading& reading : group.readings) {
        if (reading.reader != group.owner) {
          entering_[index(reading.reader - begin)] += reading.end - reading.begin;
        }
      }
    } else {
      const FirstReader first_reader(group, node_size_);
      sweep_.run(group, [&](Range rows, std::span<const Reading* const> readers) {
        const Reading* first = first_reader.of(readers);
        entering_[index(first->reader - begin)] += rows.size();
        std::int32_t* handed_on = &onward_[index(first->reader - begin) * entering_.size()];
        for (const Reading* reading : readers) {
          if (reading != first) handed_on[index(reading->reader - begin)] += rows.size();
        }
      });
    }
    take(false, group.owner, begin, entering_);
  }

  std::vector<MovedRows> result() {
    finish();
    return std::move(moved_);
  }

 private:
  static std::size_t index(std::int32_t place) { return static_cast<std::size_t>(place); }

  /// Moves sums of what `from` sends out of a table.
  void take(bool is_onward, std::int32_t from, std::int32_t first_rank,
            std::span<std::int32_t> sums) {
    for (std::size_t place = 0; place < sums.size(); ++place) {
      if (sums[place] == 0) continue;
      moved_.push_back({.space = last_.space,
                        .segment = last_.segment,
                        .is_onward = is_onward,
                        .from = from,
                        .to = first_rank + static_cast<std::int32_t>(place),
                        .num_rows = sums[place]});
      sums[place] = 0;
    }
  }
  /// The rows that a node's ranks have handed on in the segment at hand.
  void finish() {
    const std::int32_t begin = last_.node * node_size_;
    for (std::int32_t place = 0; place < node_size_; ++place) {
      take(true, begin + place, begin,
           std::span(onward_).subspan(index(place) * entering_.size(), entering_.size()));
    }
  }

  std::int32_t node_size_;
  std::vector<std::int32_t> entering_;  ///< [node_size], of the owner at hand
  std::vector<std::int32_t> onward_;    ///< [node_size, node_size], of the segment at hand
  NodeGroup last_;
  ReaderSweep sweep_;
  std::vector<MovedRows> moved_;
};

/// Lists of hops that are ordered by to_row alone: (space, segment, is_onward, to).
std::vector<Hop> in_lists(const std::vector<Hop>& hops, const Plan& plan) {
  const auto num_ranks = static_cast<std::size_t>(plan.config.num_ranks);
  std::size_t num_segments = 1;
  for (const Hop& hop : hops) {
    num_segments = std::max(num_segments, static_cast<std::size_t>(hop.segment) + 1);
  }
  const auto list_of = [&](const Hop& hop) {
    const std::size_t segment =
        static_cast<std::size_t>(hop.space) * num_segments + static_cast<std::size_t>(hop.segment);
    return (2 * segment + (hop.is_onward ? 1 : 0)) * num_ranks + static_cast<std::size_t>(hop.to);
  };
  std::vector<std::size_t> begin(4 * num_segments * num_ranks + 1, 0);
  for (const Hop& hop : hops) ++begin[list_of(hop) + 1];
  for (std::size_t b = 1; b < begin.size(); ++b) begin[b] += begin[b - 1];
  std::vector<Hop> ordered(hops.size());
  std::vector<std::size_t> next(begin.begin(), begin.end() - 1);
  for (const Hop& hop : hops) ordered[next[list_of(hop)]++] = hop;
  for (std::size_t b = 0; b + 1 < begin.size(); ++b) {
    std::ranges::sort(std::span(ordered).subspan(begin[b], begin[b + 1] - begin[b]), {},
                      &Hop::to_row);
  }
  return ordered;
}

/// Joins hops that follow each other on both sides.
void join(std::vector<Hop>& hops) {
  std::size_t kept = 0;
  for (const Hop& hop : hops) {
    if (kept > 0) {
      Hop& last = hops[kept - 1];
      Hop follower = last;
      follower.from_row += last.num_rows;
      follower.to_row += last.num_rows;
      follower.num_rows = hop.num_rows;
      if (follower == hop) {
        last.num_rows += hop.num_rows;
        continue;
      }
    }
    hops[kept++] = hop;
  }
  hops.resize(kept);
}

}  // namespace

void choose_hops(Plan& plan) {
  if (!has_nodes(plan.config)) return;
  SegmentSet by_node(plan);
  const auto choose = [&](const NodeGroup& group) {
    if (group.owner / plan.config.devices_per_node == group.node) return;
    if (!has_shared_rows(group)) return;
    for (Exchange& exchange : plan.exchanges) {
      const bool is_filling = space_of(exchange.role) == group.space;
      if (is_filling && exchange.segment == group.segment) exchange.hop = 1;
    }
    by_node.add(group.space, group.segment);
  };
  NodeGroups(plan).visit(
      [&](Space space, std::int32_t segment) { return !by_node.has(space, segment); }, choose);
}

std::vector<MovedRows> moved_by_node(const Plan& plan) {
  if (!has_nodes(plan.config) || !is_going_by_node(plan)) return {};
  const SegmentSet by_node(plan);
  PairSums sums(plan);
  NodeGroups(plan).visit(
      [&](Space space, std::int32_t segment) { return by_node.has(space, segment); },
      [&](const NodeGroup& group) { sums.add(group); });
  return sums.result();
}

}  // namespace planner

bool has_nodes(const PlanConfig& config) {
  return config.devices_per_node > 0 && config.devices_per_node < config.num_ranks;
}

bool is_by_node(const Plan& plan, Space space, std::int32_t segment) {
  return std::ranges::any_of(plan.exchanges, [&](const Exchange& exchange) {
    return exchange.hop != 0 && space_of(exchange.role) == space && exchange.segment == segment;
  });
}

std::vector<Hop> find_hops(const Plan& plan) {
  std::vector<Hop> hops;
  if (!has_nodes(plan.config)) return hops;
  const planner::SegmentSet by_node(plan);
  const std::int32_t size = plan.config.devices_per_node;
  planner::ReaderSweep sweep;
  const auto list = [&](const planner::NodeGroup& group) {
    if (group.owner / size == group.node) {
      for (const planner::Reading& reading : group.readings) {
        hops.push_back(planner::hop_of(group, reading, {reading.begin, reading.end}));
      }
      return;
    }
    sweep.run(group, [&](Range rows, std::span<const planner::Reading* const> readers) {
      planner::add_hops(group, readers, rows, size, hops);
    });
  };
  planner::NodeGroups(plan).visit(
      [&](Space space, std::int32_t segment) { return by_node.has(space, segment); }, list);
  hops = planner::in_lists(hops, plan);
  planner::join(hops);
  return hops;
}

}  // namespace magi
