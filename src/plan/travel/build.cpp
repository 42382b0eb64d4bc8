// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/build.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "mask/slice_lists.hpp"
#include "plan/tables/needs.hpp"
#include "plan/tables/received.hpp"
#include "plan/tables/stages.hpp"
#include "plan/tables/steps.hpp"

namespace magi::planner {
namespace {

/// Rows that one rank lacks, in one space.
struct Missing {
  std::vector<Range> rows;  ///< ascending, disjoint
  std::int32_t num_rows = 0;
};

/// The rows that a rank lacks of the rows that its pieces read; all of them where own rows are
/// copied too.
Missing find_missing(std::span<const WorkPiece> pieces, Space space, const WorkInputs& inputs,
                     std::int32_t rank) {
  const Layout& layout = space == Space::Keys ? inputs.layout_k : inputs.layout_q;
  std::vector<Range> read;
  read.reserve(pieces.size());
  for (const WorkPiece& piece : pieces) {
    const BandSlice& s = piece.slice;
    read.push_back(space == Space::Keys ? Range{s.k0, s.k1} : Range{s.q0, s.q1});
  }
  std::ranges::sort(read, {}, &Range::begin);
  Missing missing;
  std::size_t own = 0;
  for (std::size_t i = 0; i < read.size();) {
    Range rows = read[i];
    for (++i; i < read.size() && read[i].begin <= rows.end; ++i) {
      rows.end = std::max(rows.end, read[i].end);
    }
    if (inputs.is_collecting) {
      missing.num_rows += rows.size();
      missing.rows.push_back(rows);
      continue;
    }
    missing.num_rows += append_missing(rows, layout.runs_of(rank), layout, own, missing.rows);
  }
  return missing;
}

/// The values that all ranks agree on: stages, and which segments there are.
struct WorkStages {
  StageShape shape;
  bool is_moving_keys = false;
  bool is_moving_queries = false;

  std::int32_t num_key_segments() const {
    return is_moving_keys ? 1 + shape.num_receive_segments() : 1;
  }
  std::int32_t num_query_segments() const { return is_moving_queries ? 2 : 1; }
  bool is_by_heads() const { return shape.mode == StageMode::Heads; }
};

WorkStages make_stages(const PlanConfig& config, std::int32_t degree,
                       const std::vector<Missing>& keys, const std::vector<Missing>& queries) {
  std::vector<std::int32_t> rows;
  rows.reserve(keys.size());
  WorkStages stages;
  for (std::size_t r = 0; r < keys.size(); ++r) {
    stages.is_moving_keys |= keys[r].num_rows > 0;
    stages.is_moving_queries |= queries[r].num_rows > 0;
    rows.push_back(keys[r].num_rows);
  }
  stages.shape = shape_stages(config, degree, rows);
  if (!stages.is_moving_keys && stages.is_moving_queries) {
    // There are no keys to divide; queries go by heads where there are several.
    stages.shape.num_exchanges =
        stages.is_by_heads() ? std::clamp(degree, 1, config.num_heads_kv) : 1;
  }
  return stages;
}

/// Queries in segment 1 belong to every stage by heads and to the first one by rows.
std::vector<Exchange> make_work_exchanges(const WorkStages& stages, const PlanConfig& config) {
  const std::int32_t count = stages.shape.num_exchanges;
  const std::int32_t first_stage = stages.shape.is_gathering ? 0 : 1;
  std::vector<Exchange> exchanges;
  for (const bool is_return : {false, true}) {
    for (std::int32_t i = 0; i < count; ++i) {
      const Range heads = stages.is_by_heads() ? share_of(config.num_heads_kv, count, i)
                                               : Range{0, config.num_heads_kv};
      const auto add = [&](Role role, std::int32_t segment) {
        if (is_returning(role) != is_return) return;
        exchanges.push_back(
            {.role = role, .segment = segment, .heads = heads, .stage = first_stage + i});
      };
      const std::int32_t key_segment = stages.is_by_heads() ? 1 : 1 + i;
      const bool has_queries = stages.is_moving_queries && (stages.is_by_heads() || i == 0);
      if (stages.is_moving_keys) add(Role::KeysValues, key_segment);
      if (has_queries) {
        add(Role::Queries, 1);
        add(Role::Results, 1);
      }
      if (stages.is_moving_keys) add(Role::KeyGradients, key_segment);
      if (has_queries) add(Role::QueryGradients, 1);
    }
  }
  return exchanges;
}

/// Lists the attention calls of one rank: own queries and keys first, then what each stage brings.
class AttendList {
 public:
  AttendList(const WorkStages& stages, const PlanConfig& config,
             const std::vector<std::int32_t>& group_begin, std::int32_t own_key_segment)
      : stages_(stages),
        num_heads_(config.num_heads_kv),
        group_begin_(group_begin),
        own_key_segment_(own_key_segment) {}

  std::vector<Attend> make() {
    // Own queries are written even where a rank computes nothing for them.
    attends_.push_back({.k_segment = own_key_segment_,
                        .heads = {0, num_heads_},
                        .slices = slices_of(0, own_key_segment_)});
    const std::int32_t count = stages_.shape.num_exchanges;
    for (std::int32_t i = 0; i < count; ++i) {
      const Range heads =
          stages_.is_by_heads() ? share_of(num_heads_, count, i) : Range{0, num_heads_};
      const std::int32_t segment = stages_.is_by_heads() ? 1 : 1 + i;
      if (segment == 1) add(1, 0, heads);
      if (segment >= stages_.num_key_segments()) continue;
      if (segment != own_key_segment_) add(0, segment, heads);
      add(1, segment, heads);
    }
    return std::move(attends_);
  }

 private:
  Range slices_of(std::int32_t q, std::int32_t k) const {
    if (q >= stages_.num_query_segments()) return {};
    const auto group =
        static_cast<std::size_t>(q) * static_cast<std::size_t>(stages_.num_key_segments()) +
        static_cast<std::size_t>(k);
    return {group_begin_[group], group_begin_[group + 1]};
  }
  void add(std::int32_t q, std::int32_t k, Range heads) {
    const Range slices = slices_of(q, k);
    if (slices.empty()) return;
    const bool is_merging = q == 0 || std::ranges::any_of(attends_, [&](const Attend& other) {
                              return other.q_segment == q && other.heads == heads;
                            });
    attends_.push_back({.q_segment = q,
                        .k_segment = k,
                        .heads = heads,
                        .slices = slices,
                        .is_merging = is_merging});
  }

  const WorkStages& stages_;
  std::int32_t num_heads_;
  const std::vector<std::int32_t>& group_begin_;
  std::int32_t own_key_segment_;
  std::vector<Attend> attends_;
};

/// Counts as many transfers as runs lie behind the rows that ranks lack, and a cut for each stage:
/// a little more than there will be, counted because growing a long list copies it.
std::size_t count_transfers(const std::vector<Missing>& missing, const Layout& layout,
                            std::int32_t num_stages) {
  std::size_t count = missing.size() * static_cast<std::size_t>(num_stages);
  for (const Missing& of_rank : missing) {
    for (const Range& rows : of_rank.rows) {
      count += static_cast<std::size_t>(layout.run_of_row(rows.end - 1) -
                                        layout.run_of_row(rows.begin) + 1);
    }
  }
  return count;
}

/// Pieces that meet rows [begin, end); they ascend.
std::span<const RowPiece> pieces_in(const std::vector<RowPiece>& pieces, Range rows) {
  const auto begin = std::ranges::upper_bound(pieces, rows.begin, {}, &RowPiece::end);
  auto end = begin;
  while (end != pieces.end() && end->begin < rows.end) ++end;
  return {begin, end};
}

class WorkBuilder {
 public:
  WorkBuilder(const WorkInputs& inputs, Plan& plan) : inputs_(inputs), plan_(plan) {}

  void run() {
    const auto num_ranks = static_cast<std::size_t>(plan_.config.num_ranks);
    std::vector<std::span<const WorkPiece>> work(num_ranks);
    std::vector<Missing> keys(num_ranks);
    std::vector<Missing> queries(num_ranks);
    for (std::size_t r = 0; r < num_ranks; ++r) {
      const auto rank = static_cast<std::int32_t>(r);
      const auto first = std::ranges::lower_bound(inputs_.pieces, rank, {}, &WorkPiece::rank);
      work[r] = {first, std::ranges::upper_bound(inputs_.pieces, rank, {}, &WorkPiece::rank)};
      keys[r] = find_missing(work[r], Space::Keys, inputs_, rank);
      queries[r] = find_missing(work[r], Space::Queries, inputs_, rank);
    }
    stages_ = make_stages(plan_.config, inputs_.degree, keys, queries);
    plan_.exchanges = make_work_exchanges(stages_, plan_.config);
    plan_.ranks.clear();
    plan_.transfers.clear();
    plan_.transfers.reserve(
        count_transfers(keys, inputs_.layout_k, stages_.shape.num_exchanges + 1) +
        count_transfers(queries, inputs_.layout_q, 1));
    std::vector<Transfer> query_transfers;
    for (std::size_t r = 0; r < num_ranks; ++r) {
      const auto rank = static_cast<std::int32_t>(r);
      plan_.ranks.emplace_back();
      const std::int32_t own_segment = place_keys(rank, keys[r]);
      place_queries(rank, queries[r], query_transfers);
      const std::vector<std::int32_t> groups = make_slices(work[r], plan_.ranks.back());
      RankPlan& own = plan_.ranks.back();
      own.attends = AttendList(stages_, plan_.config, groups, own_segment).make();
      make_steps(plan_.exchanges, own);
    }
    plan_.transfers.insert(plan_.transfers.end(), query_transfers.begin(), query_transfers.end());
  }

 private:
  static void set_segments(TokenSpace& space, std::int32_t rank,
                           const std::vector<std::int32_t>& rows) {
    for (const std::int32_t count : rows) {
      space.segments.push_back({space.segments.empty() ? rank : kManyOwners, count});
    }
  }

  /// The places where the rank reads rows: received ones, and own ones unless they are among those.
  void list_rows(const Layout& layout, std::int32_t rank, std::int32_t own_segment,
                 std::vector<RowPiece>& rows) const {
    if (inputs_.is_collecting) {
      rows = received_;
    } else {
      merge_pieces(layout, rank, own_segment, received_, rows);
    }
  }

  /// Returns the segment in which the rank reads its own keys.
  std::int32_t place_keys(std::int32_t rank, const Missing& missing) {
    const StageShape& shape = stages_.shape;
    const bool is_copying = shape.is_gathering && !inputs_.is_collecting && missing.num_rows > 0;
    const std::int32_t num_parts =
        shape.mode == StageMode::Rows && missing.num_rows > 0
            ? std::clamp(missing.num_rows / shape.min_stage_rows, 1, shape.num_exchanges)
            : 1;
    const std::int32_t own_rows = inputs_.layout_k.rank_rows[static_cast<std::size_t>(rank)];
    const auto rows = place_received(missing.rows,
                                     {.num_rows = missing.num_rows,
                                      .num_parts = num_parts,
                                      .num_segments = stages_.num_key_segments(),
                                      .num_own_rows = own_rows,
                                      .is_copying_own = is_copying},
                                     received_);
    if (is_copying && own_rows > 0) {
      plan_.transfers.push_back({.src = rank, .dst = rank, .dst_segment = 1, .num_rows = own_rows});
    }
    append_transfers(inputs_.layout_k, Space::Keys, rank, received_, plan_.transfers);
    list_rows(inputs_.layout_k, rank, is_copying ? 1 : 0, keys_);
    set_segments(plan_.ranks.back().k, rank, rows);
    return is_copying ? 1 : 0;
  }

  void place_queries(std::int32_t rank, const Missing& missing, std::vector<Transfer>& transfers) {
    const auto rows =
        place_received(missing.rows,
                       {.num_rows = missing.num_rows,
                        .num_segments = stages_.num_query_segments(),
                        .num_own_rows = inputs_.layout_q.rank_rows[static_cast<std::size_t>(rank)]},
                       received_);
    append_transfers(inputs_.layout_q, Space::Queries, rank, received_, transfers);
    list_rows(inputs_.layout_q, rank, 0, queries_);
    set_segments(plan_.ranks.back().q, rank, rows);
  }

  /// Slices of the pieces in rows of the rank's segments: grouped by (q segment, k segment), joined
  /// and sorted inside. Returns group bounds.
  std::vector<std::int32_t> make_slices(std::span<const WorkPiece> work, RankPlan& own) const {
    const auto num_key_segments = static_cast<std::size_t>(stages_.num_key_segments());
    std::vector<std::vector<BandSlice>> groups(
        static_cast<std::size_t>(stages_.num_query_segments()) * num_key_segments);
    for (const WorkPiece& piece : work) {
      const BandSlice& whole = piece.slice;
      for (const RowPiece& q : pieces_in(queries_, {whole.q0, whole.q1})) {
        const BandSlice rows = shrink(cut_q(whole, {q.begin, q.end}));
        if (rows.q0 == rows.q1) continue;
        for (const RowPiece& k : pieces_in(keys_, {rows.k0, rows.k1})) {
          const BandSlice cut = shrink(cut_k(rows, {k.begin, k.end}));
          if (cut.q0 == cut.q1) continue;
          const std::size_t group = static_cast<std::size_t>(q.segment) * num_key_segments +
                                    static_cast<std::size_t>(k.segment);
          groups[group].push_back(shift(cut, q.row - q.begin, k.row - k.begin));
        }
      }
    }
    std::vector<std::int32_t> begin{0};
    for (std::vector<BandSlice>& slices : groups) {
      join_neighbours(slices);
      own.slices.insert(own.slices.end(), slices.begin(), slices.end());
      begin.push_back(static_cast<std::int32_t>(own.slices.size()));
    }
    return begin;
  }

  const WorkInputs& inputs_;
  Plan& plan_;
  WorkStages stages_;
  std::vector<RowPiece> received_;
  std::vector<RowPiece> keys_;     ///< all key rows of the rank at hand, ascending
  std::vector<RowPiece> queries_;  ///< all query rows
};

}  // namespace

void build_work(const WorkInputs& inputs, Plan& plan) { WorkBuilder(inputs, plan).run(); }

}  // namespace magi::planner
