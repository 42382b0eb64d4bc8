// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/plan.hpp"
#include "plan/value/hops.hpp"
#include "plan/value/whole_returns.hpp"

namespace magi::planner {

/// The rows that one rank moves over some links.
struct LinkTraffic {
  std::int64_t rows_in = 0;
  std::int64_t rows_out = 0;
  std::int32_t peers_in = 0;
  std::int32_t peers_out = 0;
};

/// The rows that one rank moves to fill one segment, its own and its peers'. Copies of own rows do
/// not count.
struct SegmentTraffic {
  LinkTraffic inside;   ///< straight from owners, in the node
  LinkTraffic network;  ///< between nodes, beside that
  LinkTraffic onward;   ///< handed on in the node, after both

  std::int64_t rows_in() const { return inside.rows_in + network.rows_in + onward.rows_in; }
  std::int64_t rows_out() const { return inside.rows_out + network.rows_out + onward.rows_out; }
};

/// The loads of a plan's steps: one sweep over its transfers and slices.
class PlanLoads {
 public:
  explicit PlanLoads(const Plan& plan) : PlanLoads(plan, plan.num_head_shares) {}
  /// The loads of a plan of per-share rows whose heads are in `num_shares` shares.
  PlanLoads(const Plan& plan, std::int32_t num_shares);
  /// Counts pairs anew for a plan of which nothing but exchanges, attends and steps has changed.
  void count_areas(const Plan& plan);

  const SegmentTraffic& traffic(std::int32_t rank, Space space, std::int32_t segment) const {
    return traffic_[traffic_index(rank, space, segment)];
  }
  /// Rows that an exchange brings to a rank from others.
  std::int64_t rows_in(std::int32_t rank, const Exchange& exchange) const {
    const SegmentTraffic& moved = traffic(rank, space_of(exchange.role), exchange.segment);
    return is_returning(exchange.role) ? moved.rows_out() : moved.rows_in();
  }
  /// Rows that a rank sends to others in an exchange.
  std::int64_t rows_out(std::int32_t rank, const Exchange& exchange) const {
    const SegmentTraffic& moved = traffic(rank, space_of(exchange.role), exchange.segment);
    return is_returning(exchange.role) ? moved.rows_in() : moved.rows_out();
  }
  /// Pairs of an attention call's slices; its heads share them. 0 where the rank has no such
  /// attend.
  std::int64_t area(std::int32_t rank, std::int32_t attend) const {
    const std::vector<std::int64_t>& areas = areas_[static_cast<std::size_t>(rank)];
    const auto index = static_cast<std::size_t>(attend);
    return index < areas.size() ? areas[index] : 0;
  }
  /// Rows that go by node, for each pair of ranks.
  std::span<const MovedRows> by_node() const { return by_node_; }
  const WholeReturns& whole() const { return whole_; }
  /// Pairs that a rank attends to.
  std::int64_t rank_area(std::int32_t rank) const {
    return rank_areas_[static_cast<std::size_t>(rank)];
  }

 private:
  void count_traffic(const Plan& plan);

  std::size_t traffic_index(std::int32_t rank, Space space, std::int32_t segment) const {
    return (static_cast<std::size_t>(rank) * 2 + static_cast<std::size_t>(space)) * num_segments_ +
           static_cast<std::size_t>(segment);
  }

  std::size_t num_segments_ = 1;         ///< of the space that has more of them
  std::vector<SegmentTraffic> traffic_;  ///< [num_ranks, 2, num_segments]
  std::vector<MovedRows> by_node_;
  WholeReturns whole_;
  std::vector<std::vector<std::int64_t>> areas_;  ///< [num_ranks][attends]
  std::vector<std::int64_t> rank_areas_;
};

/// Bytes of one row of an exchange, for its heads.
std::int64_t bytes_per_row(const PlanConfig& config, const Exchange& exchange, bool is_backward);

/// Bytes of one key and value row, all kv heads.
std::int64_t bytes_per_row(const PlanConfig& config);

}  // namespace magi::planner
