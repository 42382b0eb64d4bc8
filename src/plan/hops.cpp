// SPDX-License-Identifier: Apache-2.0
#include "plan/hops.hpp"

#include <algorithm>
#include <array>

#include "plan/config.hpp"

namespace magi {
namespace planner {
namespace {

/// Rows of one owner that a rank of another node needs: what a sweep needs of a transfer, beside
/// its neighbours in memory.
struct Crossing {
  std::uint64_t order = 0;  ///< node, row of the owner, reader: at most 54 bits
  std::int32_t num_rows = 0;
  std::int32_t to_row = 0;

  std::uint64_t node() const { return order >> 42; }
  std::int32_t begin() const {
    return static_cast<std::int32_t>(order >> 12 & ((std::uint64_t{1} << 30) - 1));
  }
  std::int32_t end() const { return begin() + num_rows; }
  std::int32_t reader() const { return static_cast<std::int32_t>(order & 0xfff); }
};
static_assert(kMaxRanks <= 1 << 12 && kMaxRows <= 1 << 30);

/// What one owner sends to one node for one segment, by rows.
struct CrossingGroup {
  Space space = Space::Keys;
  std::int16_t segment = 0;
  std::int32_t owner = 0;
  std::span<const Crossing> crossings;
};

/// Transfers between nodes by (space, segment, owner), in the order of transfers: there are many,
/// and sorting each owner's apart is twice as fast as sorting all.
class Crossings {
 public:
  explicit Crossings(const Plan& plan)
      : num_ranks_(static_cast<std::size_t>(plan.config.num_ranks)) {
    for (const Transfer& t : plan.transfers) {
      num_segments_ = std::max(num_segments_, static_cast<std::size_t>(t.dst_segment) + 1);
    }
    const std::int32_t size = plan.config.devices_per_node;
    std::vector<std::int32_t> node_of(num_ranks_);
    for (std::int32_t r = 0; r < plan.config.num_ranks; ++r) {
      node_of[static_cast<std::size_t>(r)] = r / size;
    }
    const auto node = [&](std::int32_t rank) { return node_of[static_cast<std::size_t>(rank)]; };
    begin_.assign(2 * num_segments_ * num_ranks_ + 1, 0);
    for (const Transfer& t : plan.transfers) {
      if (node(t.src) != node(t.dst)) ++begin_[bucket_of(t) + 1];
    }
    for (std::size_t b = 1; b < begin_.size(); ++b) begin_[b] += begin_[b - 1];
    crossings_.resize(begin_.back());
    std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
    for (const Transfer& t : plan.transfers) {
      if (node(t.src) == node(t.dst)) continue;
      const std::uint64_t order = (static_cast<std::uint64_t>(node(t.dst)) << 42) |
                                  (static_cast<std::uint64_t>(t.src_row) << 12) |
                                  static_cast<std::uint64_t>(t.dst);
      crossings_[next[bucket_of(t)]++] = {order, t.num_rows, t.dst_row};
    }
  }

  /// visit(CrossingGroup), of segments for which is_wanted(space, segment) holds.
  template <typename IsWanted, typename Visit>
  void visit_groups(IsWanted is_wanted, Visit visit) {
    for (std::size_t b = 0; b + 1 < begin_.size(); ++b) {
      const std::span<Crossing> bucket(crossings_.data() + begin_[b], begin_[b + 1] - begin_[b]);
      CrossingGroup group{.space = static_cast<Space>(b / num_ranks_ / num_segments_),
                          .segment = static_cast<std::int16_t>(b / num_ranks_ % num_segments_),
                          .owner = static_cast<std::int32_t>(b % num_ranks_)};
      if (bucket.empty() || !is_wanted(group.space, group.segment)) continue;
      std::ranges::sort(bucket, {}, &Crossing::order);
      for (std::size_t begin = 0, end = 0; begin < bucket.size(); begin = end) {
        while (end < bucket.size() && bucket[end].node() == bucket[begin].node()) ++end;
        if (!is_wanted(group.space, group.segment)) break;
        group.crossings = bucket.subspan(begin, end - begin);
        visit(group);
      }
    }
  }

 private:
  std::size_t bucket_of(const Transfer& t) const {
    const std::size_t space = static_cast<std::size_t>(t.space) * num_segments_;
    return (space + static_cast<std::size_t>(t.dst_segment)) * num_ranks_ +
           static_cast<std::size_t>(t.src);
  }

  std::size_t num_ranks_;
  std::size_t num_segments_ = 1;
  std::vector<std::size_t> begin_;
  std::vector<Crossing> crossings_;
};

/// Segments that are filled by node.
class SegmentSet {
 public:
  explicit SegmentSet(const Plan& plan) {
    for (const Exchange& exchange : plan.exchanges) {
      auto& segments = has_[static_cast<std::size_t>(space_of(exchange.role))];
      const auto segment = static_cast<std::size_t>(exchange.segment);
      if (segments.size() <= segment) segments.resize(segment + 1);
      if (exchange.hop != 0) segments[segment] = true;
    }
  }

  bool has(Space space, std::int32_t segment) const {
    const auto& segments = has_[static_cast<std::size_t>(space)];
    const auto index = static_cast<std::size_t>(segment);
    return index < segments.size() && segments[index];
  }
  /// A segment that some exchange fills.
  void add(Space space, std::int32_t segment) {
    has_[static_cast<std::size_t>(space)][static_cast<std::size_t>(segment)] = true;
  }

 private:
  std::array<std::vector<bool>, 2> has_;  ///< by Space
};

/// Sweeps the rows of one owner for one node; visit(rows, readers): rows [begin, end) of the owner
/// that the same transfers bring. Kept from group to group, as its memory is.
class ReaderSweep {
 public:
  template <typename Visit>
  void run(std::span<const Crossing> group, Visit visit) {
    bounds_.clear();
    for (const Crossing& crossing : group) {
      bounds_.push_back(crossing.begin());
      bounds_.push_back(crossing.end());
    }
    std::ranges::sort(bounds_);
    bounds_.erase(std::unique(bounds_.begin(), bounds_.end()), bounds_.end());
    active_.clear();
    auto next = group.begin();
    for (std::size_t i = 0; i + 1 < bounds_.size(); ++i) {
      std::erase_if(active_, [&](const Crossing* c) { return c->end() <= bounds_[i]; });
      while (next != group.end() && next->begin() <= bounds_[i]) active_.push_back(&*next++);
      if (active_.empty()) continue;
      visit(Range{bounds_[i], bounds_[i + 1]}, std::span<const Crossing* const>(active_));
    }
  }

 private:
  std::vector<std::int32_t> bounds_;
  std::vector<const Crossing*> active_;
};

Hop straight(const Transfer& t) {
  return {.space = t.space,
          .segment = t.dst_segment,
          .from = t.src,
          .to = t.dst,
          .from_row = t.src_row,
          .to_row = t.dst_row,
          .num_rows = t.num_rows};
}

void add_hops(const CrossingGroup& group, std::span<const Crossing* const> readers, Range rows,
              std::int32_t node_size, std::vector<Hop>& hops) {
  const auto hop_to = [&](const Crossing& reader) {
    return Hop{.space = group.space,
               .segment = group.segment,
               .from = group.owner,
               .to = reader.reader(),
               .from_row = rows.begin,
               .to_row = reader.to_row + rows.begin - reader.begin(),
               .num_rows = rows.size()};
  };
  const std::int32_t place = group.owner % node_size;
  const auto places_behind_owner = [=](const Crossing* c) {
    const std::int32_t behind = c->reader() % node_size - place;
    return behind < 0 ? behind + node_size : behind;
  };
  const Crossing* nearest = *std::ranges::min_element(readers, {}, places_behind_owner);
  const Hop entering = hop_to(*nearest);
  hops.push_back(entering);
  for (const Crossing* reader : readers) {
    if (reader == nearest) continue;
    Hop onward = hop_to(*reader);
    onward.is_onward = true;
    onward.from = entering.to;
    onward.from_row = entering.to_row;
    hops.push_back(onward);
  }
}

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
  ReaderSweep sweep;
  const auto choose = [&](const CrossingGroup& group) {
    bool is_shared = false;
    sweep.run(group.crossings, [&](Range, std::span<const Crossing* const> readers) {
      is_shared = is_shared || readers.size() > 1;
    });
    if (!is_shared) return;
    for (Exchange& exchange : plan.exchanges) {
      const bool is_filling = space_of(exchange.role) == group.space;
      if (is_filling && exchange.segment == group.segment) exchange.hop = 1;
    }
    by_node.add(group.space, group.segment);
  };
  Crossings(plan).visit_groups(
      [&](Space space, std::int32_t segment) { return !by_node.has(space, segment); }, choose);
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
  hops.reserve(plan.transfers.size());
  const planner::SegmentSet by_node(plan);
  const std::int32_t size = plan.config.devices_per_node;
  for (const Transfer& t : plan.transfers) {
    if (!by_node.has(t.space, t.dst_segment) || t.src / size != t.dst / size) continue;
    hops.push_back(planner::straight(t));
  }
  planner::ReaderSweep sweep;
  const auto list = [&](const planner::CrossingGroup& group) {
    sweep.run(group.crossings, [&](Range rows, std::span<const planner::Crossing* const> readers) {
      planner::add_hops(group, readers, rows, size, hops);
    });
  };
  planner::Crossings(plan).visit_groups(
      [&](Space space, std::int32_t segment) { return by_node.has(space, segment); }, list);
  hops = planner::in_lists(hops, plan);
  planner::join(hops);
  return hops;
}

}  // namespace magi
