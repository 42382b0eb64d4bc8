// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "magi/exchange.hpp"
#include "magi/mask.hpp"
#include "magi/placement.hpp"

namespace magi {

/// Rates used to predict time and to compare plans; `magi doctor --calibrate` measures one.
/// Defaults: H200.
struct CostModel {
  double flops_per_second = 600e12;  ///< attention forward, per rank
  double backward_flops_per_second = 520e12;
  double bytes_per_second = 275e9;     ///< out of one rank
  double seconds_per_transfer = 2e-6;  ///< per peer and wave
  double seconds_per_launch = 5e-6;
  friend bool operator==(const CostModel&, const CostModel&) = default;
};

/// What becomes ready together.
enum class WaveMode : std::int32_t {
  Auto,   ///< Heads where there are several kv heads, else Rows
  Heads,  ///< all remote rows, one section of kv heads after the other
  Rows,   ///< all kv heads, one run of remote rows after the other
};

/// Everything a plan depends on besides the mask.
struct PlanConfig {
  std::int32_t num_ranks = 1;
  std::int32_t num_heads_q = 1;
  std::int32_t num_heads_kv = 1;
  std::int32_t head_dim_qk = 128;
  std::int32_t head_dim_v = 128;
  std::int32_t element_bytes = 2;  ///< of k and v on the wire
  PlacementConfig placement;
  /// Cross-attention: keys have their own placement (`auto`: near their queries). Absent: keys sit
  /// with the queries of the same row where rows_q == rows_k, else they are placed by `placement`.
  std::optional<PlacementConfig> placement_k;
  /// 0: fetch everything, then one attention call; 1: own keys, then all remote ones; N: at most N
  /// remote waves (fewer where heads or rows do not suffice); absent: the cost model chooses 1..8.
  std::optional<std::int32_t> overlap_degree = 1;
  WaveMode wave_mode = WaveMode::Auto;
  std::int32_t min_wave_rows = 512;
  CostModel cost;
  friend bool operator==(const PlanConfig&, const PlanConfig&) = default;
};

/// A run of rows that one rank attends from. owner is the rank that holds the rows, or kManyOwners
/// for received rows, whose order is that of global key rows (so that few tiles are partial). Rows
/// of wave 0 are there from the start.
struct Segment {
  std::int32_t owner = 0;
  std::int32_t num_rows = 0;
  std::int32_t wave = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};
inline constexpr std::int32_t kManyOwners = -1;

/// Segment 0 holds the rank's own rows. Key segments from 1 on are receive buffers:
/// overlap degree 0: segment 1 = the own rows (the runtime copies segment 0 there), then the
/// received rows; waves by heads: segment 1 = all received rows; waves by rows: one per wave.
struct TokenSpace {
  std::vector<Segment> segments;
  friend bool operator==(const TokenSpace&, const TokenSpace&) = default;
};

/// One unit of work of a rank: `slices` (indices into RankPlan::slices, rows counted inside the
/// segments) for kv heads `heads` of key segment `k_segment`. Waves by heads share slices and
/// segment, so that memory stays linear.
struct Wave {
  std::int32_t k_segment = 0;
  Range heads;
  Range slices;
  friend bool operator==(const Wave&, const Wave&) = default;
};

struct RankPlan {
  TokenSpace q;
  TokenSpace k;
  std::vector<BandSlice> slices;  ///< grouped by k segment; inside one ordered by (q0, k0)
  std::vector<Wave> waves;  ///< waves[0]: own keys (degree 0: all keys); every rank has the same
                            ///< number of waves, some empty
  friend bool operator==(const RankPlan&, const RankPlan&) = default;
};

/// `num_rows` key and value rows that go from rank `src` (its own rows from src_row) to rank `dst`
/// (rows of k segment `dst_segment` from dst_row). Serves each wave that reads the segment, with
/// that wave's heads. The reduce is the transpose: the same record read from dst to src.
struct Transfer {
  std::int32_t src = 0;
  std::int32_t dst = 0;
  std::int32_t src_row = 0;
  std::int32_t dst_segment = 0;
  std::int32_t dst_row = 0;
  std::int32_t num_rows = 0;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// Figures of a plan; bytes are exact, times are predictions of the cost model.
struct PlanReport {
  std::vector<std::int64_t> rank_area;
  std::vector<std::int64_t> rank_rows;
  std::vector<std::int64_t> remote_rows;  ///< key rows received by each rank
  std::vector<std::int64_t> pair_bytes;   ///< [num_ranks * num_ranks], forward cast, row = source
  double balance = 1.0;                   ///< max area / mean area
  std::int64_t total_bytes = 0;           ///< forward cast
  /// No placement with keys at their queries' ranks (cross-attention: with these row counts) whose
  /// largest rank is not above this plan's in rows and area moves less.
  std::int64_t lower_bound_bytes = 0;
  std::int64_t ring_bytes = 0;  ///< what a ring / all-gather of the valid K and V rows moves
  double forward_seconds = 0.0;
  double backward_seconds = 0.0;
  double exposed_comm_seconds = 0.0;  ///< forward communication not hidden
  friend bool operator==(const PlanReport&, const PlanReport&) = default;
};

/// Placement, work and transfers of all ranks: a pure function of (mask, config), equal on every
/// rank and in every run.
struct Plan {
  Mask mask;  ///< as given, before padding
  PlanConfig config;
  Placement placement_q;
  Placement placement_k;
  std::int32_t num_waves = 1;  ///< including the own-keys wave 0
  std::vector<RankPlan> ranks;
  std::vector<Transfer> transfers;  ///< ordered by (dst, dst_segment, dst_row)
  PlanReport report;
  std::uint64_t digest =
      0;  ///< over all integers above but the report; ranks compare it before the first transfer
  friend bool operator==(const Plan&, const Plan&) = default;
};

/// Plans a mask. Throws InvalidArgument for a bad mask or config.
Plan make_plan(const Mask& mask, const PlanConfig& config);

/// Plans another mask over rows that are already placed (hybrid layers): placement and ranks are
/// `dispatched`'s.
Plan make_plan_on(const Mask& mask, const PlanConfig& config, const Placement& placement_q,
                  const Placement& placement_k);

std::uint64_t plan_digest(const Plan& plan);

/// Versioned JSON; reading refuses unknown keys, other versions and values that no plan can hold,
/// and recomputes the digest.
std::string plan_to_json(const Plan& plan);
Plan plan_from_json(std::string_view text);

/// A page of text for a person: balance, bytes against ring and bound, waves, predicted time.
std::string describe(const Plan& plan);

/// What `rank` sends and receives to fill each key segment (element s: segment s; segment 0 is
/// empty). Waves by heads share the exchange of their segment. `needed` rows count inside the
/// segment, `owned` rows among the rank's own key rows.
std::vector<RowExchange> row_exchanges(const Plan& plan, std::int32_t rank);

/// Everything that is wrong with a plan, one sentence each; empty for a sound one. Works from
/// plan.mask and the placements, shares no code with the planner, and checks: index bounds, waves
/// and heads, transfers (each needed row once, none needless), each visible pair exactly once,
/// areas, bytes, digest. Pairs are compared exactly up to 2^24 of them, beyond by a polynomial
/// fingerprint.
std::vector<std::string> check_plan(const Plan& plan);

/// The original's argument lists for rank `rank` and a wave that receives (from 1 on; degree 0:
/// wave 0): what its group_cast takes. Input splits cover all own key rows, those that nobody needs
/// with an empty destination list. group_reduce takes the exact transpose.
struct GroupCollectiveArgs {
  std::vector<std::int64_t> input_split_sizes;
  std::vector<std::int64_t> output_split_sizes;
  std::vector<std::vector<std::int64_t>>
      dst_indices;                      ///< per input split: destination ranks, ascending
  std::vector<std::int64_t> src_index;  ///< per output split: source rank
  friend bool operator==(const GroupCollectiveArgs&, const GroupCollectiveArgs&) = default;
};
GroupCollectiveArgs group_collective_args(const Plan& plan, std::int32_t rank, std::int32_t wave);

}  // namespace magi
