// SPDX-License-Identifier: Apache-2.0
#include "plan/tables/ranks.hpp"

#include <algorithm>

#include "base/math.hpp"
#include "mask/slice_lists.hpp"
#include "plan/tables/received.hpp"
#include "plan/tables/steps.hpp"

namespace magi::planner {
namespace {

/// Scratch that is kept from rank to rank.
struct Scratch {
  std::vector<RowPiece> received;                  ///< ascending
  std::vector<RowPiece> pieces;                    ///< own and received, ascending
  std::vector<std::vector<BandSlice>> by_segment;  ///< [num_segments] slices
  std::vector<std::size_t> cut_begin;  ///< [num_segments] first slice of the cut at hand
};

/// The part of the rows a rank lacks that it asks for first. Ranks see much the same rows: where
/// stages take turns each node begins with another part, since an owner whose rows all ranks ask
/// for at once would send for all others.
std::int32_t first_part(const RankInputs& inputs, std::int32_t rank, std::int32_t num_parts) {
  if (inputs.shape.stages_in_flight == 0) return 0;
  const PlanConfig& config = inputs.config;
  const std::int32_t size = has_nodes(config) ? config.devices_per_node : 1;
  const std::int64_t num_groups = ceil_div(config.num_ranks, size);
  return static_cast<std::int32_t>(std::int64_t{rank} / size * num_parts / num_groups);
}

/// The way the keys that `rank` receives lie in its segments.
ReceivedShape received_shape(const RankInputs& inputs, std::int32_t rank) {
  const StageShape& shape = inputs.shape;
  const std::int32_t remote = inputs.needs.remote_rows[static_cast<std::size_t>(rank)];
  const std::int32_t num_parts =
      shape.mode == StageMode::Rows
          ? std::clamp(remote / shape.min_stage_rows, 1, std::max(shape.num_receive_segments(), 1))
          : 1;
  return {.num_rows = remote,
          .num_parts = num_parts,
          .num_segments = shape.num_receive_segments() + 1,
          .num_own_rows = inputs.layout_k.rank_rows[static_cast<std::size_t>(rank)],
          .is_copying_own = shape.is_gathering && remote > 0,
          .first_part = first_part(inputs, rank, num_parts)};
}

/// Splits one cut over the pieces that hold its keys and appends local slices by segment.
void localise(const BandSlice& cut, std::int32_t dq, Scratch& scratch) {
  for (std::size_t s = 0; s < scratch.by_segment.size(); ++s) {
    scratch.cut_begin[s] = scratch.by_segment[s].size();
  }
  auto piece = std::upper_bound(scratch.pieces.begin(), scratch.pieces.end(), cut.k0,
                                [](std::int32_t row, const RowPiece& p) { return row < p.end; });
  for (; piece != scratch.pieces.end() && piece->begin < cut.k1; ++piece) {
    BandSlice part = cut;
    if (cut.k0 < piece->begin || cut.k1 > piece->end) {
      part = shrink(cut_k(cut, {piece->begin, piece->end}));
      if (part.q1 == part.q0) continue;
    }
    part = shift(part, dq, piece->row - piece->begin);
    const auto segment = static_cast<std::size_t>(piece->segment);
    std::vector<BandSlice>& slices = scratch.by_segment[segment];
    if (slices.size() > scratch.cut_begin[segment] && is_continued_by(slices.back(), part)) {
      slices.back().k1 = part.k1;
      slices.back().d_max = part.d_max;
    } else {
      slices.push_back(part);
    }
  }
}

/// Moves the slices out of the scratch: grouped by segment, joined and sorted inside. Returns group
/// bounds.
std::vector<std::int32_t> collect_slices(Scratch& scratch, RankPlan& plan) {
  std::vector<std::int32_t> begin{0};
  begin.reserve(scratch.by_segment.size() + 1);
  std::size_t total = 0;
  for (std::vector<BandSlice>& slices : scratch.by_segment) {
    join_neighbours(slices);
    total += slices.size();
  }
  plan.slices.reserve(total);
  for (std::vector<BandSlice>& slices : scratch.by_segment) {
    plan.slices.insert(plan.slices.end(), slices.begin(), slices.end());
    begin.push_back(static_cast<std::int32_t>(plan.slices.size()));
    slices.clear();
  }
  return begin;
}

RankPlan build_rank(const RankInputs& inputs, std::int32_t rank, Scratch& scratch, Plan& plan) {
  const auto& [needs, layout_q, layout_k, shape, config] = inputs;
  const ReceivedShape received = received_shape(inputs, rank);
  const std::vector<std::int32_t> segment_rows =
      place_received(needs.remote_of(rank), received, scratch.received);
  const bool is_copying = received.is_copying_own;
  if (is_copying && segment_rows[0] > 0) {
    plan.transfers.push_back(
        {.src = rank, .dst = rank, .dst_segment = 1, .num_rows = segment_rows[0]});
  }
  merge_pieces(layout_k, rank, is_copying ? 1 : 0, scratch.received, scratch.pieces);
  // Ascending by segment, as transfers are.
  std::rotate(scratch.received.begin(), std::ranges::find(scratch.received, 1, &RowPiece::segment),
              scratch.received.end());
  append_transfers(layout_k, Space::Keys, rank, scratch.received, plan.transfers);
  for (const std::int32_t index : layout_q.runs_of(rank)) {
    const RowRun& run = layout_q.runs[static_cast<std::size_t>(index)];
    for (const BandSlice& cut : needs.cuts_of_run(index)) {
      localise(cut, run.local - run.begin, scratch);
    }
  }
  RankPlan own;
  own.q.segments = {{rank, layout_q.rank_rows[static_cast<std::size_t>(rank)]}};
  own.k.segments.reserve(segment_rows.size());
  for (const std::int32_t rows : segment_rows) {
    own.k.segments.push_back({own.k.segments.empty() ? rank : kManyOwners, rows});
  }
  own.attends = make_attends(shape, plan.exchanges, config, collect_slices(scratch, own));
  make_steps(plan.exchanges, own, shape.stages_in_flight);
  return own;
}

/// Counts as many transfers as there are runs behind the rows that ranks lack, and two cuts and a
/// copy for each rank: a little more than there will be, counted because growing a long list copies
/// it.
std::size_t count_transfers(const RankInputs& inputs) {
  const Layout& layout = inputs.layout_k;
  const auto num_parts = static_cast<std::size_t>(inputs.shape.num_receive_segments());
  std::size_t count = (num_parts + 2) * inputs.layout_q.rank_rows.size();
  for (const Range& keys : inputs.needs.remote) {
    count += static_cast<std::size_t>(layout.run_of_row(keys.end - 1) -
                                      layout.run_of_row(keys.begin) + 1);
  }
  return count;
}

}  // namespace

void build_ranks(const RankInputs& inputs, Plan& plan) {
  const std::size_t num_ranks = inputs.layout_q.rank_rows.size();
  plan.stages_in_flight = inputs.shape.stages_in_flight;
  plan.exchanges = make_exchanges(inputs.shape, inputs.config);
  plan.ranks.clear();
  plan.ranks.reserve(num_ranks);
  plan.transfers.clear();
  plan.transfers.reserve(count_transfers(inputs));
  const auto num_segments = static_cast<std::size_t>(inputs.shape.num_receive_segments()) + 1;
  Scratch scratch;
  scratch.by_segment.resize(num_segments);
  scratch.cut_begin.resize(num_segments);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    plan.ranks.push_back(build_rank(inputs, static_cast<std::int32_t>(rank), scratch, plan));
  }
}

}  // namespace magi::planner
