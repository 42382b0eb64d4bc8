// SPDX-License-Identifier: Apache-2.0
#include "plan/ranks.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "mask/join.hpp"
#include "plan/steps.hpp"

namespace magi::planner {
namespace {

/// Where global key rows [begin, end) lie on one rank.
struct KeyPiece {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t segment = 0;
  std::int32_t row = 0;  ///< row of `begin` inside the segment
};

/// Scratch that is kept from rank to rank.
struct Scratch {
  std::vector<KeyPiece> received;                  ///< ascending
  std::vector<KeyPiece> pieces;                    ///< own and received, ascending
  std::vector<std::vector<BandSlice>> by_segment;  ///< [num_segments] slices
  std::vector<std::size_t> cut_begin;  ///< [num_segments] first slice of the cut at hand
};

/// Places received rows of `rank` in segments, cut at the bounds of stages, behind the copies of
/// own rows that segment 1 begins with. Returns rows per segment.
std::vector<std::int32_t> place_received(const RankInputs& inputs, std::int32_t rank,
                                         Scratch& scratch) {
  const StageShape& shape = inputs.shape;
  const auto r = static_cast<std::size_t>(rank);
  scratch.received.clear();
  const std::int32_t remote = inputs.needs.remote_rows[r];
  std::vector<std::int32_t> segment_rows(static_cast<std::size_t>(shape.num_receive_segments()) +
                                         1);
  segment_rows[0] = inputs.layout_k.rank_rows[r];
  if (remote == 0) return segment_rows;
  const std::int32_t num_parts =
      shape.mode == StageMode::Rows
          ? std::clamp(remote / shape.min_stage_rows, 1, shape.num_exchanges)
          : 1;
  if (shape.is_gathering) segment_rows[1] = segment_rows[0];
  std::int32_t received = 0;
  std::int32_t part = 0;
  Range part_rows = share_of(remote, num_parts, part);
  for (const Range& keys : inputs.needs.remote_of(rank)) {
    for (std::int32_t begin = keys.begin; begin < keys.end;) {
      if (received == part_rows.end) part_rows = share_of(remote, num_parts, ++part);
      const std::int32_t rows = std::min(keys.end - begin, part_rows.end - received);
      std::int32_t& filled = segment_rows[static_cast<std::size_t>(part) + 1];
      scratch.received.push_back({begin, begin + rows, part + 1, filled});
      filled += rows;
      begin += rows;
      received += rows;
    }
  }
  return segment_rows;
}

/// Lists own and received rows in ascending order; the own ones lie in segment `own_segment`.
void merge_pieces(const Layout& layout_k, std::int32_t rank, std::int32_t own_segment,
                  Scratch& scratch) {
  scratch.pieces.clear();
  auto received = scratch.received.begin();
  for (const std::int32_t index : layout_k.runs_of(rank)) {
    const RowRun& run = layout_k.runs[static_cast<std::size_t>(index)];
    for (; received != scratch.received.end() && received->begin < run.begin; ++received) {
      scratch.pieces.push_back(*received);
    }
    scratch.pieces.push_back({run.begin, run.end, own_segment, run.local});
  }
  scratch.pieces.insert(scratch.pieces.end(), received, scratch.received.end());
}

/// Splits one cut over the pieces that hold its keys and appends local slices by segment.
void localise(const BandSlice& cut, std::int32_t dq, Scratch& scratch) {
  for (std::size_t s = 0; s < scratch.by_segment.size(); ++s) {
    scratch.cut_begin[s] = scratch.by_segment[s].size();
  }
  auto piece = std::upper_bound(scratch.pieces.begin(), scratch.pieces.end(), cut.k0,
                                [](std::int32_t row, const KeyPiece& p) { return row < p.end; });
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

/// Transfers that fill the received pieces of `dst`, in order of destination rows.
void append_transfers(const Layout& layout_k, std::int32_t dst, const Scratch& scratch,
                      std::vector<Transfer>& transfers) {
  const std::size_t first = transfers.size();
  for (const KeyPiece& piece : scratch.received) {
    auto index = static_cast<std::size_t>(layout_k.run_of_row(piece.begin));
    for (std::int32_t row = piece.begin; row < piece.end; ++index) {
      const RowRun& run = layout_k.runs[index];
      const std::int32_t rows = std::min(piece.end, run.end) - row;
      const std::int32_t src_row = run.local + (row - run.begin);
      const std::int32_t dst_row = piece.row + (row - piece.begin);
      row += rows;
      // Runs of one owner around rows of `dst` are neighbours on both sides.
      Transfer* last = transfers.size() > first ? &transfers.back() : nullptr;
      if (last != nullptr && last->src == run.rank && last->dst_segment == piece.segment &&
          last->src_row + last->num_rows == src_row && last->dst_row + last->num_rows == dst_row) {
        last->num_rows += rows;
        continue;
      }
      // Filled where it lies: one put together beside the list takes half as long again.
      Transfer& next = transfers.emplace_back();
      next.src = run.rank;
      next.dst = dst;
      next.src_row = src_row;
      next.dst_segment = static_cast<std::int16_t>(piece.segment);
      next.dst_row = dst_row;
      next.num_rows = rows;
    }
  }
}

RankPlan build_rank(const RankInputs& inputs, std::int32_t rank, Scratch& scratch, Plan& plan) {
  const auto& [needs, layout_q, layout_k, shape, config] = inputs;
  const std::vector<std::int32_t> segment_rows = place_received(inputs, rank, scratch);
  const bool is_copying = shape.is_gathering && !scratch.received.empty();
  if (is_copying && segment_rows[0] > 0) {
    plan.transfers.push_back(
        {.src = rank, .dst = rank, .dst_segment = 1, .num_rows = segment_rows[0]});
  }
  append_transfers(layout_k, rank, scratch, plan.transfers);
  merge_pieces(layout_k, rank, is_copying ? 1 : 0, scratch);
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
  make_steps(plan.exchanges, own);
  return own;
}

}  // namespace

void build_ranks(const RankInputs& inputs, Plan& plan) {
  const std::size_t num_ranks = inputs.layout_q.rank_rows.size();
  plan.exchanges = make_exchanges(inputs.shape, inputs.config);
  plan.ranks.clear();
  plan.ranks.reserve(num_ranks);
  plan.transfers.clear();
  plan.transfers.reserve(inputs.needs.remote.size() * 2);
  const auto num_segments = static_cast<std::size_t>(inputs.shape.num_receive_segments()) + 1;
  Scratch scratch;
  scratch.by_segment.resize(num_segments);
  scratch.cut_begin.resize(num_segments);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    plan.ranks.push_back(build_rank(inputs, static_cast<std::int32_t>(rank), scratch, plan));
  }
}

}  // namespace magi::planner
