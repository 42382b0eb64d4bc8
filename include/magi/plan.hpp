// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "magi/cost.hpp"
#include "magi/exchange.hpp"
#include "magi/mask.hpp"
#include "magi/placement.hpp"

namespace magi {

/// The way received keys are divided into stages. A stage is the work that becomes ready together.
enum class StageMode : std::int32_t {
  Auto,   ///< Heads where there are several kv heads, else Rows
  Heads,  ///< all remote rows, one section of kv heads after the other
  Rows,   ///< all kv heads, one run of remote rows after the other
};

/// The rows that travel so that each visible pair is computed once.
enum class WorkMode : std::int32_t {
  Keys,     ///< a rank computes its own queries' rows; keys travel
  Queries,  ///< a rank may compute any pairs; queries travel too where that moves fewer bytes, and
            ///< areas are even whatever the placement. `auto` then places rows in order. At most 64
            ///< ranks
  Auto,   ///< the fastest of all by the predicted time of both passes; above 64 ranks the faster of
          ///< Keys and Heads
  Heads,  ///< kv heads are shared out to neighbouring ranks, which compute theirs for the rows of
          ///< all of them; see Plan::num_head_shares. `auto` then places rows in order
  Chosen,  ///< Keys; where more than a fifth of the predicted step could be gained the fastest of
           ///< few plans: Keys in another placement, Heads in as many shares as may be, and Queries
           ///< where Keys leave work uneven. The plan's config has what was chosen. For
           ///< make_plan and make_plan_on alone; it has no name in work_from_name.
};

/// "keys", "queries", "auto", "heads".
const char* work_name(WorkMode work);
/// Throws InvalidArgument listing the names.
WorkMode work_from_name(std::string_view name);

/// The bound of exchange memory where none is asked for: a twentieth of a GPU of 80 GiB.
inline constexpr std::int64_t kDefaultExchangeBytes = std::int64_t{4} << 30;

/// Everything a plan depends on besides the mask.
struct PlanConfig {
  std::int32_t num_ranks = 1;
  std::int32_t num_heads_q = 1;  ///< a multiple of num_heads_kv
  std::int32_t num_heads_kv = 1;
  std::int32_t head_dim_qk = 128;  ///< elements of a head of q and k
  std::int32_t head_dim_v = 128;   ///< elements of a head of v
  std::int32_t element_bytes = 2;  ///< of k and v on the wire
  PlacementConfig placement = {};
  /// Cross-attention: keys have their own placement (`auto`: near their queries). Absent: keys sit
  /// with the queries of the same row where rows_q == rows_k, else they are placed by `placement`.
  std::optional<PlacementConfig> placement_k = {};
  /// Remote stages. Absent: the cost model chooses 0 to 8; 0: fetch all, then one attention call;
  /// 1: own keys, then all remote ones; N: at most N (fewer where heads or rows do not suffice).
  std::optional<std::int32_t> overlap_degree = {};
  WorkMode work = WorkMode::Keys;
  /// The number of shares with work Heads, a divisor of num_ranks and of num_heads_kv. 0: the
  /// common divisor of the least predicted time; 1, as where there is no other, is work Queries.
  std::int32_t head_shares = 0;
  StageMode stage_mode = StageMode::Auto;
  std::int32_t min_stage_rows = 512;  ///< by rows, a stage brings a rank at least so many
  /// Ranks fill one node after the other, the last one may be short; 0: one node holds all. Between
  /// nodes the cost model's network counts: placements prefer the node (see NodeShape), and rows go
  /// by node where that saves crossings (see Exchange::hop).
  std::int32_t devices_per_node = 0;
  /// The most of PlanReport::rank_runs that a rank may have, for models with recurrent layers.
  /// Placements that search keep it; a plan that cannot is refused.
  std::optional<std::int32_t> max_runs = {};
  CostModel cost = {};
  /// The most that PlanReport::rank_memory may be on any rank. Where a plan needs more, its stages
  /// take turns in memory (Plan::stages_in_flight), and the fastest such plan stays. A mask that no
  /// plan keeps it for is refused. Absent: kDefaultExchangeBytes, which refuses none; 0: no bound.
  std::optional<std::int64_t> max_exchange_bytes = {};
  friend bool operator==(const PlanConfig&, const PlanConfig&) = default;
};

/// A run of rows that one rank attends from. owner is the rank that holds the rows, or kManyOwners
/// for received rows, whose order is that of global rows (so that few tiles are partial).
struct Segment {
  std::int32_t owner = 0;
  std::int32_t num_rows = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};
inline constexpr std::int32_t kManyOwners = -1;

/// Segment 0 holds the rank's own rows; segments from 1 on are receive buffers, which exchanges
/// fill. Every rank has the same number of segments, some empty.
struct TokenSpace {
  std::vector<Segment> segments;
  friend bool operator==(const TokenSpace&, const TokenSpace&) = default;
};

/// Which of a rank's two token spaces a row belongs to.
enum class Space : std::int16_t { Keys, Queries };

/// The contents of an exchange. KeysValues and Queries go from the owners to segments of the ranks
/// that need them; the other three go back from those segments and are added or merged at the
/// owners.
enum class Role : std::int32_t {
  KeysValues,      ///< k and v
  Queries,         ///< forward: q; backward: q, out, its gradient, and numbers of each row
  Results,         ///< partial out and lse of received queries, merged by lse
  KeyGradients,    ///< partial dk and dv of received keys, summed
  QueryGradients,  ///< partial dq of received queries, summed
};
inline constexpr std::int32_t kNumRoles = 5;

constexpr Space space_of(Role role) {
  return role == Role::KeysValues || role == Role::KeyGradients ? Space::Keys : Space::Queries;
}
constexpr bool is_returning(Role role) { return role >= Role::Results; }

/// A collective call of all ranks: it moves the rows of all transfers of one segment, for some kv
/// heads (of queries: the query heads that read them).
struct Exchange {
  Role role = Role::KeysValues;
  std::int32_t segment = 1;  ///< of the role's space; from 1 on
  Range heads;
  /// 0: rows go straight between owners and readers. 1: by node, see Hop; only where there are
  /// several nodes, and alike for all exchanges of a segment.
  std::int32_t hop = 0;
  std::int32_t stage = 0;  ///< the stage whose attends read or have written the rows
  friend bool operator==(const Exchange&, const Exchange&) = default;
};

/// A run of rows on its way to a segment. By node a row crosses once to each node that needs it: to
/// the reader whose place in its node follows the owner's first, in a circle, which hands it on to
/// the others there. What returns takes the same way back, and is combined where it was handed on.
struct Hop {
  Space space = Space::Keys;
  std::int16_t segment = 0;
  bool is_onward = false;     ///< `from` hands on rows of its segment; else they are its own rows
  std::int32_t from = 0;      ///< rank
  std::int32_t to = 0;        ///< rank
  std::int32_t from_row = 0;  ///< of the own rows, or inside the segment
  std::int32_t to_row = 0;    ///< inside the segment
  std::int32_t num_rows = 0;
  friend bool operator==(const Hop&, const Hop&) = default;
};

/// One attention call of a rank: `slices` (indices into RankPlan::slices, rows counted inside the
/// two segments) for kv heads `heads`. Attends that differ in their heads alone share slices, so
/// that memory stays linear. One that is not merging writes every row of its query segment for its
/// heads; one that is merging adds to what earlier attends wrote.
struct Attend {
  std::int32_t q_segment = 0;
  std::int32_t k_segment = 0;
  Range heads;
  Range slices;
  bool is_merging = false;
  friend bool operator==(const Attend&, const Attend&) = default;
};

enum class StepKind : std::int32_t { Exchange, Attend };

/// One step of a rank's pass. A rank starts its exchanges in the order of the list, and runs its
/// attends in the order of the list, one after the other. `after` holds positions in the same list
/// of the steps that must have ended before this one starts, -1 where there is none.
struct Step {
  StepKind kind = StepKind::Attend;
  std::int32_t index = 0;  ///< into Plan::exchanges or RankPlan::attends
  std::array<std::int32_t, 2> after{-1, -1};
  friend bool operator==(const Step&, const Step&) = default;
};

/// The part of one rank. Both passes run every attention call once, and every rank starts the same
/// exchanges in the same order, so those that it sends and receives nothing in too.
struct RankPlan {
  TokenSpace q;
  TokenSpace k;
  std::vector<BandSlice> slices;  ///< grouped by segments; in a group ordered by (q0, k0)
  std::vector<Attend> attends;
  std::vector<Step> forward;
  std::vector<Step> backward;
  friend bool operator==(const RankPlan&, const RankPlan&) = default;
};

/// `num_rows` rows that go from rank `src` (its own rows from src_row) to rank `dst` (rows of
/// segment `dst_segment` from dst_row); src == dst: a copy of own rows. Serves each exchange of the
/// segment, with that exchange's heads; a returning exchange reads the same record from dst to src.
struct Transfer {
  std::int32_t src = 0;
  std::int32_t dst = 0;
  std::int32_t src_row = 0;
  std::int16_t dst_segment = 0;
  Space space = Space::Keys;
  std::int32_t dst_row = 0;
  std::int32_t num_rows = 0;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// Figures of a plan; bytes are exact, times are predictions of the cost model.
struct PlanReport {
  std::vector<std::int64_t> rank_area;  ///< pairs; with head shares once for each share
  std::vector<std::int64_t> rank_rows;  ///< rows that each rank holds, padding included
  std::vector<std::int64_t>
      remote_rows;  ///< key rows (per-share rows) received by each rank from others
  /// Runs of rows of each rank that come after a row of another rank, whose state a recurrent layer
  /// must fetch; see Run. 0 for cross-attention.
  std::vector<std::int64_t> rank_runs;
  /// Bytes of each rank's receive segments in a backward pass: received and copied rows as they
  /// travel, and their gradients (of queries also lse and delta), which are float32 unless shares
  /// of heads make them whole; of stages that take turns, those of all turns. What a rank holds
  /// beyond its own rows' tensors, but for buffers of transports and, with head shares, flat copies
  /// of those tensors.
  std::vector<std::int64_t> rank_memory;
  /// Bytes that a forward pass moves between ranks, [num_ranks * num_ranks], row = sender (by node,
  /// who hands a row on sends it).
  std::vector<std::int64_t> pair_bytes;
  double balance = 1.0;          ///< max area / mean area
  std::int64_t total_bytes = 0;  ///< sum of pair_bytes
  /// No placement with keys at their queries' ranks (cross-attention: with these row counts) whose
  /// largest rank is not above this plan's in rows and area moves less.
  std::int64_t lower_bound_bytes = 0;
  std::int64_t ring_bytes = 0;  ///< what a ring / all-gather of the valid K and V rows moves
  /// The time until all results are at their owners, and until all gradients are; in both passes
  /// with CostModel::seconds_per_run of the rank of the most runs.
  double forward_seconds = 0.0;
  double backward_seconds = 0.0;
  double exposed_comm_seconds = 0.0;  ///< of the forward: communication that nothing hides
  friend bool operator==(const PlanReport&, const PlanReport&) = default;
};

/// Placement, work and transfers of all ranks: a pure function of (mask, config), equal on every
/// rank and in every run.
struct Plan {
  Mask mask;  ///< as given, before padding
  PlanConfig config;
  Placement placement_q;
  Placement placement_k;
  /// Above 1: the heads of a row are cut into so many equal shares, each of which is a row of its
  /// own, a per-share row. All that follows counts per-share rows, and in them the kv heads of one
  /// share; see flat_plan.
  std::int32_t num_head_shares = 1;
  /// 0: the rows of each stage and their gradients have memory of their own. Else there is memory
  /// for so many stages: stage s takes that of stage s - stages_in_flight, once the rows there have
  /// been read and their gradients have left. Then keys alone travel, and each exchange of them is
  /// a stage.
  std::int32_t stages_in_flight = 0;
  std::vector<Exchange> exchanges;  ///< of both passes, in the order in which they start
  std::vector<RankPlan> ranks;
  std::vector<Transfer> transfers;  ///< ordered by (space, dst, dst_segment, dst_row)
  PlanReport report;
  /// Over all above but the report and how rows are placed; ranks compare it before the first
  /// transfer.
  std::uint64_t digest = 0;
  friend bool operator==(const Plan&, const Plan&) = default;
};

/// Plans a mask. Throws InvalidArgument for a bad mask or config.
Plan make_plan(const Mask& mask, const PlanConfig& config);

/// Plans another mask over rows that are already placed (hybrid layers): placement and ranks are
/// `dispatched`'s.
Plan make_plan_on(const Mask& mask, const PlanConfig& config, const Placement& placement_q,
                  const Placement& placement_k);

/// A plan as one of per-share rows, whose config has the heads of one share: it has one share, and
/// any reader of tables understands it. Its mask is the plan's, once for each share. The rows of a
/// share follow one another, in the whole sequence and in a rank's shard, where a short last chunk
/// counts as a full one. Digest, memory and times are the plan's, counts of the report those of
/// per-share rows. A plan of one share is returned as it is. Throws InvalidArgument where shares do
/// not divide heads, or there are too many per-share rows.
Plan flat_plan(const Plan& plan);

std::uint64_t plan_digest(const Plan& plan);

/// Rows [begin, end) of the sequence that one rank holds, each after the row before it in its
/// document: what a recurrent layer computes at once. A row comes after the last one before it that
/// it sees. A run ends where its rank's rows or its document do, and after a row that a branch of
/// a prefix tree comes after.
struct Run {
  std::int32_t rank = 0;
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t parent = -1;  ///< the row that the first one comes after; -1: it begins a document
  friend bool operator==(const Run&, const Run&) = default;
};
/// The runs of all ranks, ordered by (rank, begin), without padding; none for cross-attention.
std::vector<Run> runs_of(const Plan& plan);

/// Stages of a plan: one more than the last stage of an exchange.
std::int32_t num_stages(const Plan& plan);

/// The stage of a step: an exchange's own; of an attention call the last one whose keys or queries
/// it waits for, 0 where it waits for none.
std::int32_t stage_of(const Plan& plan, std::span<const Step> steps, const Step& step);

/// Versioned JSON; reading refuses unknown keys, other versions and values that no plan can hold,
/// and makes the digest and the report anew: a text with other counts is refused.
std::string plan_to_json(const Plan& plan);
Plan plan_from_json(std::string_view text);

/// The tables of a plan's JSON as they are written, figures and digest too, sound or not: for
/// check_plan alone. Throws InvalidArgument for what is no plan's JSON.
Plan plan_tables_from_json(std::string_view text);

/// A page of text for a person: balance, bytes against ring and bound, stages, predicted time.
/// Throws InvalidArgument for a plan without ranks.
std::string describe(const Plan& plan);

/// Lists what `rank` sends and receives to fill each segment of a space (element s: segment s;
/// segment 0 is empty). Exchanges of one segment share its lists. `needed` rows count inside the
/// segment, `owned` rows among the rank's own rows; own rows that are copied have peer == rank in
/// both.
std::vector<RowExchange> row_exchanges(const Plan& plan, std::int32_t rank,
                                       Space space = Space::Keys);

/// Whether there are several nodes.
bool has_nodes(const PlanConfig& config);
/// Whether the rows of a segment go by node.
bool is_by_node(const Plan& plan, Space space, std::int32_t segment);
/// The way of the rows of every segment that is filled by node, copies of own rows included,
/// ordered by (space, segment, is_onward, to, to_row).
std::vector<Hop> find_hops(const Plan& plan);

/// The rows that a rank sends and receives to fill a segment by node. `onward` counts both sides
/// inside the segment, and follows `first`; what returns goes through `onward` before.
struct NodeExchange {
  RowExchange first;
  RowExchange onward;
  friend bool operator==(const NodeExchange&, const NodeExchange&) = default;
};
/// Does what row_exchanges does, for segments that are filled by node; the others are empty.
std::vector<NodeExchange> node_exchanges(const Plan& plan, std::int32_t rank,
                                         Space space = Space::Keys);

/// Says what is wrong with a plan, one sentence each, which names rank, step and rows; empty for a
/// sound one, at most 32. Works from plan.mask and the placements, shares no code with what makes
/// tables, and checks: index bounds, steps and what they wait for (no wait can be circular), heads,
/// transfers (each needed row once, none needless), each visible pair as often as the mask has it,
/// and the digest, in time about linear in slices and transfers. The report of sound tables is
/// compared with make_report, times to 2 ns a step.
std::vector<std::string> check_plan(const Plan& plan);

}  // namespace magi
