// SPDX-License-Identifier: Apache-2.0
#include "plan/work.hpp"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

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

/// Received rows of `rank` in segments, cut at the bounds of waves. Returns rows per segment.
std::vector<std::int32_t> place_received(const Needs& needs, std::int32_t rank,
                                         std::int32_t own_rows, const WaveShape& shape,
                                         Scratch& scratch) {
  scratch.received.clear();
  const std::int32_t remote = needs.remote_rows[static_cast<std::size_t>(rank)];
  const std::int32_t num_segments = 1 + shape.num_receive_segments();
  std::vector<std::int32_t> segment_rows(static_cast<std::size_t>(num_segments), 0);
  segment_rows[0] = own_rows;
  if (remote == 0) return segment_rows;
  std::int32_t num_parts = 1;
  if (!shape.is_combined && shape.mode == WaveMode::Rows) {
    num_parts = std::clamp(remote / shape.min_wave_rows, 1, shape.num_remote);
  }
  const std::int32_t first_row = shape.is_combined ? own_rows : 0;
  std::int32_t received = 0;
  std::int32_t part = 0;
  Range part_rows = wave_rows(remote, num_parts, part);
  for (const Range& keys : needs.remote_of(rank)) {
    for (std::int32_t begin = keys.begin; begin < keys.end;) {
      if (received == part_rows.end) part_rows = wave_rows(remote, num_parts, ++part);
      const std::int32_t rows = std::min(keys.end - begin, part_rows.end - received);
      scratch.received.push_back(
          {begin, begin + rows, part + 1, first_row + received - part_rows.begin});
      segment_rows[static_cast<std::size_t>(part) + 1] =
          first_row + received + rows - part_rows.begin;
      begin += rows;
      received += rows;
    }
  }
  return segment_rows;
}

/// Own and received rows in one ascending list. The combined buffer starts with the own rows.
void merge_pieces(const Layout& layout_k, std::int32_t rank, bool is_reading_buffer,
                  Scratch& scratch) {
  scratch.pieces.clear();
  auto received = scratch.received.begin();
  for (const std::int32_t index : layout_k.runs_of(rank)) {
    const RowRun& run = layout_k.runs[static_cast<std::size_t>(index)];
    for (; received != scratch.received.end() && received->begin < run.begin; ++received) {
      scratch.pieces.push_back(*received);
    }
    scratch.pieces.push_back({run.begin, run.end, is_reading_buffer ? 1 : 0, run.local});
  }
  scratch.pieces.insert(scratch.pieces.end(), received, scratch.received.end());
}

/// True if `next` continues `slice` to the right with the same queries: both then are one band,
/// because a bound that is infinite on the shared side never binds there (slices are shrunk).
bool is_continued_by(const BandSlice& slice, const BandSlice& next) {
  if (slice.k1 != next.k0 || slice.q0 != next.q0 || slice.q1 != next.q1) return false;
  if (slice.d_min == next.d_min && slice.d_max == next.d_max) return true;
  return slice.d_max == kBandInfinity && next.d_min == -kBandInfinity;
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

bool is_before(const BandSlice& a, const BandSlice& b) {
  return std::tie(a.q0, a.k0, a.q1, a.k1, a.d_min, a.d_max) <
         std::tie(b.q0, b.k0, b.q1, b.k1, b.d_min, b.d_max);
}

/// Moves the slices out of the scratch: grouped by segment, sorted inside. Returns group bounds.
std::vector<std::int32_t> collect_slices(Scratch& scratch, std::int32_t rank, RankPlan& plan,
                                         Work& work) {
  std::vector<std::int32_t> begin{0};
  begin.reserve(scratch.by_segment.size() + 1);
  std::size_t total = 0;
  for (const auto& slices : scratch.by_segment) total += slices.size();
  plan.slices.reserve(total);
  for (std::size_t s = 0; s < scratch.by_segment.size(); ++s) {
    std::vector<BandSlice>& slices = scratch.by_segment[s];
    if (!std::is_sorted(slices.begin(), slices.end(), is_before)) {
      std::sort(slices.begin(), slices.end(), is_before);
    }
    std::int64_t pairs = 0;
    for (const BandSlice& slice : slices) pairs += area(slice);
    work.load(rank, static_cast<std::int32_t>(s)).area = pairs;
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
      const Transfer next{run.rank,
                          dst,
                          run.local + (row - run.begin),
                          piece.segment,
                          piece.row + (row - piece.begin),
                          rows};
      row += rows;
      // Runs of one owner around rows of `dst` are neighbours on both sides.
      Transfer* last = transfers.size() > first ? &transfers.back() : nullptr;
      if (last != nullptr && last->src == next.src && last->dst_segment == next.dst_segment &&
          last->src_row + last->num_rows == next.src_row &&
          last->dst_row + last->num_rows == next.dst_row) {
        last->num_rows += rows;
      } else {
        transfers.push_back(next);
      }
    }
  }
}

/// Rows and peers per rank and segment, from the transfers (ordered by destination).
void count_traffic(Work& work, std::int32_t num_ranks) {
  std::vector<std::int64_t> seen(static_cast<std::size_t>(num_ranks), -1);
  for (const Transfer& transfer : work.transfers) {
    SegmentLoad& in = work.load(transfer.dst, transfer.dst_segment);
    SegmentLoad& out = work.load(transfer.src, transfer.dst_segment);
    in.rows_in += transfer.num_rows;
    out.rows_out += transfer.num_rows;
    const std::int64_t stamp =
        std::int64_t{transfer.dst} * work.num_segments + transfer.dst_segment;
    std::int64_t& last = seen[static_cast<std::size_t>(transfer.src)];
    if (last != stamp) {
      last = stamp;
      ++in.peers_in;
      ++out.peers_out;
    }
  }
}

RankPlan build_rank(const WorkInputs& inputs, std::int32_t rank, Scratch& scratch, Work& work) {
  const auto& [needs, layout_q, layout_k, shape, config] = inputs;
  const auto r = static_cast<std::size_t>(rank);
  const std::int32_t own_rows = layout_k.rank_rows[r];
  const std::vector<std::int32_t> segment_rows =
      place_received(needs, rank, own_rows, shape, scratch);
  append_transfers(layout_k, rank, scratch, work.transfers);
  merge_pieces(layout_k, rank, shape.is_combined && !scratch.received.empty(), scratch);
  for (const std::int32_t index : layout_q.runs_of(rank)) {
    const RowRun& run = layout_q.runs[static_cast<std::size_t>(index)];
    for (const BandSlice& cut : needs.cuts_of_run(index)) {
      localise(cut, run.local - run.begin, scratch);
    }
  }
  RankPlan plan;
  plan.q.segments = {{rank, layout_q.rank_rows[r], 0}};
  plan.k.segments.reserve(segment_rows.size());
  plan.k.segments.push_back({rank, own_rows, 0});
  for (std::size_t s = 1; s < segment_rows.size(); ++s) {
    const std::int32_t wave = shape.is_combined ? 0 : static_cast<std::int32_t>(s);
    plan.k.segments.push_back({kManyOwners, segment_rows[s], wave});
  }
  plan.waves = make_waves(shape, config, collect_slices(scratch, rank, plan, work));
  return plan;
}

}  // namespace

Work build_work(const WorkInputs& inputs) {
  Work work;
  work.num_segments = 1 + inputs.shape.num_receive_segments();
  const auto num_segments = static_cast<std::size_t>(work.num_segments);
  const std::size_t num_ranks = inputs.layout_q.rank_rows.size();
  work.loads.resize(num_ranks * num_segments);
  work.ranks.reserve(num_ranks);
  work.transfers.reserve(inputs.needs.remote.size() * 2);
  Scratch scratch;
  scratch.by_segment.resize(num_segments);
  scratch.cut_begin.resize(num_segments);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    work.ranks.push_back(build_rank(inputs, static_cast<std::int32_t>(rank), scratch, work));
  }
  count_traffic(work, static_cast<std::int32_t>(num_ranks));
  return work;
}

}  // namespace magi::planner
