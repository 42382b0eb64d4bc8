// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/rows/row_exchanger.hpp"
#include "magi/plan.hpp"
#include "plan/value/whole_returns.hpp"

namespace magi {

enum class Pass : std::uint8_t { Forward, Backward };

/// A segment of a rank; the plan outlives what refers to it.
struct SegmentPlace {
  const Plan& plan;
  Space space = Space::Keys;
  std::int32_t segment = 0;
  std::int32_t rank = 0;
};

/// The rows that fill one segment of a rank, and the way back of what the rank made of them.
class SegmentRows {
 public:
  /// `by_node`: the way of the same rows by node; null where they go straight.
  SegmentRows(const SegmentPlace& place, const RowExchange& exchange, const NodeExchange* by_node,
              std::int32_t rows, Range own_rows);
  /// The partials that go back. Without `own`, whose part of a sum is in place. Made when it is
  /// first asked for: a forward seldom does.
  const comm::RowTable& returning() const;
  /// A cast of the same rows the other way, for results that are whole. Made like that.
  const comm::RowTable& returned_rows() const;

  std::int32_t num_rows;
  Range own;  ///< the copy of all own keys in which their sums begin; empty: another place
  comm::RowTable filling;  ///< the cast that brings the rows

 private:
  std::shared_ptr<const comm::NodeTables> node_tables(const RowExchange& first,
                                                      const RowExchange& onward) const;
  std::int32_t num_ranks() const { return place_.plan.config.num_ranks; }

  SegmentPlace place_;
  mutable std::optional<comm::RowTable> returning_, returned_rows_;
};

/// Shares of the heads, whose rows are per-share rows (flat_plan), as one rank has them.
struct HeadShares {
  HeadShares() = default;
  HeadShares(const Plan& plan, std::int32_t rank);

  std::int32_t count = 1;
  std::int32_t rows_q = 0, rows_k = 0;                      ///< of the rank's tensors
  std::int32_t rows_per_share_q = 0, rows_per_share_k = 0;  ///< those and what fills chunks up
};

/// One attention call of a rank, cut to the query rows that it works on: all rows of its segment,
/// or those that see keys where it is merged into an earlier result. With shares of the heads an
/// attention call is as many calls as there are shares whose rows it works on, each of the own keys
/// of its share.
struct AttendCall {
  Attend attend;
  std::int32_t share = 0;  ///< of the heads
  Range q_heads;
  Range q_rows;
  Range k_rows;                   ///< of its segment; none where a share sees no own keys
  std::vector<BandSlice> slices;  ///< rows count from q_rows.begin and k_rows.begin
  std::int32_t keys = -1;         ///< exchange that brings its keys; -1: own keys
  std::int32_t queries = -1;      ///< exchange that brings its queries; -1: own queries
  /// Whether rows may be under way beside it, by Pass: keys and queries that it need not wait for,
  /// and in the backward gradients of attention calls before it.
  std::array<bool, 2> is_beside{};
  /// Own queries of a share that see no own keys, all heads of it: without sinks, out and dq are 0.
  bool is_idle = false;
  std::size_t alike = 0;  ///< first attention call with the same slices and shapes
};

/// The actions of one rank in a step of a plan, with its row tables. Borrows the plan, which has
/// one share of the heads: itself, or the flat plan of one that has `shares`.
struct RankSteps {
  RankSteps(const Plan& plan, std::int32_t rank, const HeadShares& shares = {});

  const SegmentRows& rows_of(const Exchange& exchange) const;
  /// The rows that fill a segment, or the same on their way back, as each rank has them.
  comm::EveryonesRows everyones_rows(Space space, std::int32_t segment, bool is_back) const;
  /// Whether what returns of a space is whole on all ranks (planner::WholeReturns).
  bool returns_whole(Space space) const { return whole_.of(space); }
  /// Whether no rank has more than one attention call, and this rank's waits for keys of others
  /// alone: the forward is {exchange, attend}, the backward {exchange, attend, exchange back}. Own
  /// keys are the first rows of its segment or none of them. So it is with overlap degree 0.
  bool is_arrival() const;
  /// The rows that bring the keys of an attention call, which are not own ones in place.
  const SegmentRows& rows_of_keys(const AttendCall& call) const {
    return rows_of(plan.exchanges[static_cast<std::size_t>(call.keys)]);
  }
  /// Whether attends that see keys run while rows are under way.
  bool has_work_beside_exchange() const;
  /// Query heads that read kv heads `heads`, counted as those are.
  Range q_heads(Range heads) const;
  /// Whether a segment holds a copy of all own keys: gradients of own keys are summed there.
  bool is_own_keys_copied() const;
  /// The exchange that fills the segment of `space` for all of kv heads `heads`; -1: own rows.
  std::int32_t filling_exchange(Space space, std::int32_t segment, Range heads) const;
  /// Query heads of a call among those of all shares.
  Range all_q_heads(const AttendCall& call) const;

  const Plan& plan;
  const RankPlan& own;
  HeadShares shares;
  std::vector<SegmentRows> q_segments, k_segments;
  std::vector<AttendCall> attends;  ///< in the order of the rank's plan
  std::vector<Range> calls_of;      ///< of each attention call of the plan, into attends
  /// Attends and exchanges that write or merge into own rows on this rank: from two on own results
  /// are sums.
  std::int32_t num_results = 0;

 private:
  void add_calls(const Attend& attend);
  /// Says which attention calls have exchanges beside them: those that attention calls wait for,
  /// and in the backward gradients. Rows that this rank sends and does not await leave before it
  /// attends: a push beside a kernel that leaves it no multiprocessor would begin at its end.
  void mark(Pass pass);

  planner::WholeReturns whole_;
};

}  // namespace magi
