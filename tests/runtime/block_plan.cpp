// SPDX-License-Identifier: Apache-2.0
#include "runtime/block_plan.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "plan/cost/report.hpp"
#include "plan/placements.hpp"
#include "plan/tables/steps.hpp"

namespace magi::testing {
namespace {

constexpr Space kSpaces[] = {Space::Keys, Space::Queries};
using Segments = std::vector<std::vector<std::int32_t>>;  ///< global rows, ascending

std::size_t index_of(Space space) { return space == Space::Keys ? 0 : 1; }

std::int32_t owner_of(const Placement& placement, std::int32_t row) {
  return placement.chunk_rank[static_cast<std::size_t>(row / placement.chunk_size)];
}

std::int32_t local_row(const std::vector<std::int32_t>& rows, std::int32_t row) {
  return static_cast<std::int32_t>(std::ranges::lower_bound(rows, row) - rows.begin());
}

/// What one rank attends to, in global rows by (query segment, key segment), and the rows it reads.
struct RankBlocks {
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<BandSlice>> pieces;
  std::array<Segments, 2> rows;  ///< by space
};

class BlockPlanner {
 public:
  BlockPlanner(Plan& plan, const BlockPlanOptions& options)
      : plan_(plan), options_(options), blocks_(plan.ranks.size()) {}

  void run() {
    share_out();
    for (const Space space : kSpaces) add_transfers(space);
    for (const bool is_return : {false, true}) add_exchanges(is_return);
    for (std::size_t r = 0; r < blocks_.size(); ++r) add_attends(blocks_[r], plan_.ranks[r]);
  }

 private:
  const Placement& placement(Space space) const {
    return space == Space::Keys ? plan_.placement_k : plan_.placement_q;
  }

  /// Received rows are divided so that those of later segments come later.
  std::int32_t segment_of(Space space, std::int32_t chunk, std::int32_t rank, bool is_copied) {
    const Placement& where = placement(space);
    if (where.chunk_rank[static_cast<std::size_t>(chunk)] == rank && !is_copied) return 0;
    return 1 + chunk * options_.num_received_segments / where.num_chunks();
  }

  void share_out() {
    for (std::size_t r = 0; r < blocks_.size(); ++r) {
      for (const Space space : kSpaces) {
        Segments& rows = blocks_[r].rows[index_of(space)];
        rows.resize(1 + static_cast<std::size_t>(options_.num_received_segments));
        rows[0] = global_rows(placement(space), static_cast<std::int32_t>(r));
      }
    }
    for (const BandSlice& slice : plan_.mask.slices) {
      for (std::int32_t q = 0; q < plan_.placement_q.num_chunks(); ++q) {
        const BandSlice rows = cut_q(slice, plan_.placement_q.chunk_rows(q));
        for (std::int32_t k = 0; k < plan_.placement_k.num_chunks(); ++k) {
          const BandSlice piece = shrink(cut_k(rows, plan_.placement_k.chunk_rows(k)));
          if (area(piece) > 0) add_piece(piece, q, k);
        }
      }
    }
  }

  void add_piece(const BandSlice& piece, std::int32_t chunk_q, std::int32_t chunk_k) {
    const BlockWork work = options_.work(chunk_q, chunk_k);
    RankBlocks& blocks = blocks_[static_cast<std::size_t>(work.rank)];
    const std::int32_t q = segment_of(Space::Queries, chunk_q, work.rank, work.is_q_copied);
    const std::int32_t k = work.k_copy > 0
                               ? work.k_copy
                               : segment_of(Space::Keys, chunk_k, work.rank, work.is_k_copied);
    blocks.pieces[{q, k}].push_back(piece);
    add_rows(blocks.rows[1][static_cast<std::size_t>(q)], {piece.q0, piece.q1});
    add_rows(blocks.rows[0][static_cast<std::size_t>(k)], {piece.k0, piece.k1});
  }

  static void add_rows(std::vector<std::int32_t>& rows, Range added) {
    std::set<std::int32_t> all(rows.begin(), rows.end());
    for (std::int32_t row = added.begin; row < added.end; ++row) all.insert(row);
    rows.assign(all.begin(), all.end());
  }

  void add_transfers(Space space) {
    const std::size_t first = plan_.transfers.size();
    for (std::size_t r = 0; r < blocks_.size(); ++r) {
      const Segments& segments = blocks_[r].rows[index_of(space)];
      for (std::size_t s = 1; s < segments.size(); ++s) {
        for (std::size_t i = 0; i < segments[s].size(); ++i) {
          const std::int32_t src = owner_of(placement(space), segments[s][i]);
          const auto& owned = blocks_[static_cast<std::size_t>(src)].rows[index_of(space)][0];
          add_row({.src = src,
                   .dst = static_cast<std::int32_t>(r),
                   .src_row = local_row(owned, segments[s][i]),
                   .dst_segment = static_cast<std::int16_t>(s),
                   .space = space,
                   .dst_row = static_cast<std::int32_t>(i),
                   .num_rows = 1},
                  first);
        }
      }
    }
  }

  void add_row(const Transfer& row, std::size_t first) {
    if (plan_.transfers.size() > first) {
      Transfer& last = plan_.transfers.back();
      if (last.src == row.src && last.dst == row.dst && last.dst_segment == row.dst_segment &&
          last.src_row + last.num_rows == row.src_row) {
        ++last.num_rows;
        return;
      }
    }
    plan_.transfers.push_back(row);
  }

  void add_exchanges(bool is_return) {
    std::set<std::pair<Space, std::int32_t>> filled;
    for (const Transfer& t : plan_.transfers) filled.insert({t.space, t.dst_segment});
    for (std::size_t h = 0; h < options_.heads.size(); ++h) {
      for (const auto& [space, segment] : filled) {
        for (std::int32_t r = 0; r < kNumRoles; ++r) {
          const auto role = static_cast<Role>(r);
          if (is_returning(role) != is_return || space_of(role) != space) continue;
          plan_.exchanges.push_back({.role = role,
                                     .segment = segment,
                                     .heads = options_.heads[h],
                                     .stage = static_cast<std::int32_t>(h) + 1});
        }
      }
    }
  }

  void add_attends(RankBlocks& blocks, RankPlan& rank) {
    for (const Space space : kSpaces) {
      TokenSpace& token_space = space == Space::Keys ? rank.k : rank.q;
      for (const auto& rows : blocks.rows[index_of(space)]) {
        const bool is_own = token_space.segments.empty();
        const auto own = static_cast<std::int32_t>(&rank - plan_.ranks.data());
        token_space.segments.push_back(
            {is_own ? own : kManyOwners, static_cast<std::int32_t>(rows.size())});
      }
    }
    const bool is_own_written = std::ranges::any_of(
        blocks.pieces, [](const auto& group) { return group.first.first == 0; });
    if (!is_own_written) blocks.pieces[{0, 0}] = {};
    for (const auto& [segments, pieces] : blocks.pieces) {
      const auto [q, k] = segments;
      const Range slices = add_slices(blocks, segments, rank);
      for (const Range& heads : options_.heads) {
        rank.attends.push_back({.q_segment = q, .k_segment = k, .heads = heads, .slices = slices});
      }
    }
    shuffle(rank.attends);
    std::set<std::pair<std::int32_t, std::int32_t>> written;
    for (Attend& attend : rank.attends) {
      attend.is_merging = !written.insert({attend.q_segment, attend.heads.begin}).second;
    }
    planner::make_steps(plan_.exchanges, rank);
  }

  void shuffle(std::vector<Attend>& attends) const {
    for (std::size_t i = attends.size(); options_.order != nullptr && i > 1; --i) {
      const auto last = static_cast<std::int32_t>(i) - 1;
      std::swap(attends[i - 1],
                attends[static_cast<std::size_t>(options_.order->between(0, last))]);
    }
  }

  static Range add_slices(const RankBlocks& blocks, std::pair<std::int32_t, std::int32_t> segments,
                          RankPlan& rank) {
    const auto& rows_q = blocks.rows[1][static_cast<std::size_t>(segments.first)];
    const auto& rows_k = blocks.rows[0][static_cast<std::size_t>(segments.second)];
    std::vector<BandSlice> slices;
    for (const BandSlice& piece : blocks.pieces.at(segments)) {
      slices.push_back(shift(piece, local_row(rows_q, piece.q0) - piece.q0,
                             local_row(rows_k, piece.k0) - piece.k0));
    }
    std::ranges::stable_sort(slices, {}, [](const BandSlice& s) { return std::pair(s.q0, s.k0); });
    const auto begin = static_cast<std::int32_t>(rank.slices.size());
    rank.slices.insert(rank.slices.end(), slices.begin(), slices.end());
    return {begin, static_cast<std::int32_t>(rank.slices.size())};
  }

  Plan& plan_;
  const BlockPlanOptions& options_;
  std::vector<RankBlocks> blocks_;
};

}  // namespace

Plan make_block_plan(const Mask& mask, const PlanConfig& config, const Placement& placement_q,
                     const Placement& placement_k, const BlockPlanOptions& options) {
  Plan plan;
  plan.mask = mask;
  plan.config = config;
  plan.placement_q = placement_q;
  plan.placement_k = placement_k;
  plan.ranks.resize(static_cast<std::size_t>(config.num_ranks));
  BlockPlanner(plan, options).run();
  plan.report = planner::make_report(plan);
  plan.digest = plan_digest(plan);
  return plan;
}

}  // namespace magi::testing
