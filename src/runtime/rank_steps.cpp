// SPDX-License-Identifier: Apache-2.0
#include "runtime/rank_steps.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.hpp"
#include "plan/cost/flat.hpp"
#include "plan/cost/sum_bytes.hpp"
#include "plan/cost/timeline.hpp"

namespace magi {
namespace {

/// The rows of an exchange without those that do not leave the rank.
RowExchange between_ranks(RowExchange rows, std::int32_t rank) {
  const auto is_own = [rank](const PeerRows& record) { return record.peer == rank; };
  std::erase_if(rows.owned, is_own);
  std::erase_if(rows.needed, is_own);
  return rows;
}

/// Whether one exchange brings the rows of a key segment for all heads.
bool is_brought_whole(const Plan& plan, std::int32_t segment) {
  return std::ranges::any_of(plan.exchanges, [&](const Exchange& exchange) {
    return exchange.role == Role::KeysValues && exchange.segment == segment &&
           exchange.heads == Range{0, plan.config.num_heads_kv};
  });
}

/// The copy, by rank, of all own keys in which their sums begin; to segment 0: in another place.
/// Sums have one place: in place if an attention call reads the keys there, else the first copy.
std::vector<Transfer> copies_with_own_sums(const Plan& plan) {
  std::vector<Transfer> copies(plan.ranks.size());
  for (const Transfer& t : plan.transfers) {
    if (t.space != Space::Keys || t.src != t.dst) continue;
    const RankPlan& owner = plan.ranks[static_cast<std::size_t>(t.src)];
    const bool is_read_in_place =
        std::ranges::find(owner.attends, 0, &Attend::k_segment) != owner.attends.end();
    if (is_read_in_place || t.num_rows != owner.k.segments.front().num_rows) continue;
    Transfer& copy = copies[static_cast<std::size_t>(t.src)];
    const bool is_first = copy.dst_segment == 0 || t.dst_segment < copy.dst_segment;
    if (is_first && is_brought_whole(plan, t.dst_segment)) copy = t;
  }
  return copies;
}

/// Partial rows of a key segment on the wire of the rank that takes most: those of other ranks and,
/// where sums of own keys do not begin in the segment, its own.
std::int64_t count_most_partials(const Plan& plan, std::int32_t segment) {
  const std::vector<Transfer> places = copies_with_own_sums(plan);
  std::vector<std::int64_t> rows(plan.ranks.size());
  for (const Transfer& t : plan.transfers) {
    if (t.space != Space::Keys || t.dst_segment != segment) continue;
    const auto owner = static_cast<std::size_t>(t.src);
    if (t.src != t.dst || places[owner].dst_segment != segment) rows[owner] += t.num_rows;
  }
  return *std::ranges::max_element(rows);
}

std::vector<SegmentRows> make_segments(const Plan& plan, std::int32_t rank, Space space) {
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  Transfer copy;
  if (space == Space::Keys) copy = copies_with_own_sums(plan)[static_cast<std::size_t>(rank)];
  const std::vector<Segment>& rows = (space == Space::Queries ? own.q : own.k).segments;
  const std::vector<NodeExchange> by_node = node_exchanges(plan, rank, space);
  std::vector<SegmentRows> segments;
  for (const RowExchange& exchange : row_exchanges(plan, rank, space)) {
    const std::size_t s = segments.size();
    const auto segment = static_cast<std::int32_t>(s);
    Range own_rows;
    if (segment == copy.dst_segment) own_rows = {copy.dst_row, copy.dst_row + copy.num_rows};
    segments.emplace_back(SegmentPlace{plan, space, segment, rank}, exchange,
                          is_by_node(plan, space, segment) ? &by_node[s] : nullptr,
                          rows[s].num_rows, own_rows);
  }
  return segments;
}

Range seen_rows(std::span<const BandSlice> slices) {
  Range rows{kMaxRows, 0};
  for (const BandSlice& slice : slices) {
    const BandSlice tight = shrink(slice);
    if (tight.q0 == tight.q1) continue;
    rows = {std::min(rows.begin, tight.q0), std::max(rows.end, tight.q1)};
  }
  return rows.empty() ? Range{} : rows;
}

/// The part of an attention call that works on query rows `rows`.
AttendCall make_call(const RankSteps& steps, const Attend& attend, Range rows) {
  const auto slices = std::span(steps.own.slices)
                          .subspan(static_cast<std::size_t>(attend.slices.begin),
                                   static_cast<std::size_t>(attend.slices.size()));
  AttendCall call{
      .attend = attend,
      .q_heads = steps.q_heads(attend.heads),
      .q_rows = rows,
      .k_rows = {0, steps.k_segments[static_cast<std::size_t>(attend.k_segment)].num_rows},
      .keys = steps.filling_exchange(Space::Keys, attend.k_segment, attend.heads),
      .queries = steps.filling_exchange(Space::Queries, attend.q_segment, attend.heads)};
  // Slices of all rows are not cut, so that kernels refuse those that pass the rows.
  const bool has_all_rows = steps.shares.count == 1;
  if (!attend.is_merging && has_all_rows) {
    call.slices.assign(slices.begin(), slices.end());
    return call;
  }
  std::vector<BandSlice> cuts;
  for (const BandSlice& slice : slices) {
    const BandSlice cut = has_all_rows ? slice : cut_q(slice, rows);
    if (cut.q0 < cut.q1) cuts.push_back(cut);
  }
  if (attend.is_merging) call.q_rows = seen_rows(cuts);
  for (const BandSlice& cut : cuts) {
    const BandSlice rest = cut_q(cut, call.q_rows);
    if (rest.q0 < rest.q1) call.slices.push_back(shift(rest, -call.q_rows.begin, 0));
  }
  return call;
}

/// Leaves a call of a share the own keys of that share.
void take_keys_of_share(const HeadShares& shares, AttendCall& call) {
  if (call.slices.empty()) {
    call.k_rows = {};
    return;
  }
  const std::int32_t begin = call.share * shares.rows_per_share_k;
  call.k_rows = {begin, begin + shares.rows_k};
  for (BandSlice& slice : call.slices) slice = shift(slice, 0, -begin);
}

/// Query rows of each share in a segment, by the rows that fill it; own ones less those that fill
/// up chunks.
std::vector<Range> share_rows(const RankSteps& steps, std::int32_t segment) {
  const HeadShares& shares = steps.shares;
  const std::int32_t num_rows = steps.q_segments[static_cast<std::size_t>(segment)].num_rows;
  if (shares.count == 1) return {{0, num_rows}};
  std::vector<Range> rows(static_cast<std::size_t>(shares.count), Range{num_rows, 0});
  for (std::int32_t begin = 0; Range & own : rows) {
    if (segment == 0) own = {begin, begin + shares.rows_q};
    begin += shares.rows_per_share_q;
  }
  for (const Transfer& t : steps.plan.transfers) {
    const bool is_filling = t.space == Space::Queries && t.dst_segment == segment &&
                            t.dst == steps.own.q.segments[0].owner;
    if (!is_filling) continue;
    const std::int32_t size = steps.plan.placement_q.rows_of(t.src) / shares.count;
    for (std::int32_t row = t.src_row; row < t.src_row + t.num_rows;) {
      const std::int32_t share = row / size;
      const std::int32_t end = std::min((share + 1) * size, t.src_row + t.num_rows);
      Range& known = rows[static_cast<std::size_t>(share)];
      const std::int32_t first = t.dst_row + row - t.src_row;
      known = {std::min(known.begin, first), std::max(known.end, first + end - row)};
      row = end;
    }
  }
  return rows;
}

bool is_alike(const AttendCall& a, const AttendCall& b) {
  return a.share == b.share && a.attend.slices == b.attend.slices &&
         a.attend.q_segment == b.attend.q_segment && a.attend.k_segment == b.attend.k_segment &&
         a.attend.heads.size() == b.attend.heads.size() &&
         a.attend.is_merging == b.attend.is_merging && a.is_beside == b.is_beside;
}

}  // namespace

SegmentRows::SegmentRows(const SegmentPlace& place, const RowExchange& exchange,
                         const NodeExchange* by_node, std::int32_t rows, Range own_rows)
    : num_rows(rows),
      own(own_rows),
      filling(exchange, place.rank, place.plan.config.num_ranks),
      place_(place) {
  if (by_node != nullptr) filling.by_node = node_tables(by_node->first, by_node->onward);
}

std::shared_ptr<const comm::NodeTables> SegmentRows::node_tables(const RowExchange& first,
                                                                 const RowExchange& onward) const {
  return std::make_shared<comm::NodeTables>(
      comm::NodeTables{.first = comm::RowTable(first, place_.rank, num_ranks()),
                       .onward = comm::RowTable(onward, place_.rank, num_ranks())});
}

const comm::RowTable& SegmentRows::returning() const {
  if (!returning_) {
    returning_.emplace(own.empty() ? filling.rows : between_ranks(filling.rows, place_.rank),
                       place_.rank, num_ranks());
    if (place_.space == Space::Keys) {
      returning_->most_partials = count_most_partials(place_.plan, place_.segment);
    }
    returning_->at_peers = filling.at_peers;  // of the same rows
    if (filling.by_node != nullptr) {
      const RowExchange& first = filling.by_node->first.rows;
      returning_->by_node = node_tables(own.empty() ? first : between_ranks(first, place_.rank),
                                        filling.by_node->onward.rows);
    }
  }
  return *returning_;
}

const comm::RowTable& SegmentRows::returned_rows() const {
  if (!returned_rows_) {
    const RowExchange& rows = filling.rows;
    returned_rows_.emplace(RowExchange{.owned = rows.needed, .needed = rows.owned}, place_.rank,
                           num_ranks());
  }
  return *returned_rows_;
}

HeadShares::HeadShares(const Plan& of, std::int32_t rank)
    : count(of.num_head_shares),
      rows_q(of.placement_q.rows_of(rank)),
      rows_k(of.placement_k.rows_of(rank)),
      rows_per_share_q(planner::rows_per_share(of.placement_q, rank)),
      rows_per_share_k(planner::rows_per_share(of.placement_k, rank)) {}

RankSteps::RankSteps(const Plan& given, std::int32_t rank, const HeadShares& head_shares)
    : plan(given),
      own(given.ranks[static_cast<std::size_t>(rank)]),
      shares(head_shares.count > 1 ? head_shares : HeadShares(given, rank)),
      q_segments(make_segments(given, rank, Space::Queries)),
      k_segments(make_segments(given, rank, Space::Keys)),
      whole_(given, shares.count) {
  for (const Attend& attend : own.attends) add_calls(attend);
  mark(Pass::Forward);
  mark(Pass::Backward);
  for (std::size_t a = 0; a < attends.size(); ++a) {
    const auto is_like_this = [&](const AttendCall& call) { return is_alike(call, attends[a]); };
    const auto first = std::ranges::find_if(attends, is_like_this);
    attends[a].alike = static_cast<std::size_t>(first - attends.begin());
    if (attends[a].queries < 0 && !attends[a].q_rows.empty()) ++num_results;
  }
  for (const Exchange& exchange : plan.exchanges) {
    if (exchange.role != Role::Results) continue;
    const comm::WireOrder& owned = rows_of(exchange).filling.owned;
    if (owned.num_rows + owned.num_own_rows > 0) ++num_results;
  }
  // Behind an attention call of the same keys own ones add to dK and dV, and so to dq, which is
  // float32 then.
  if (!attends.empty() && attends.front().queries >= 0) ++num_results;
}

void RankSteps::mark(Pass pass) {
  const bool is_forward = pass == Pass::Forward;
  const std::vector<Step>& list = is_forward ? own.forward : own.backward;
  const bool may_be_beside = planner::is_worth_multiprocessors(plan, own, !is_forward);
  std::vector<bool> is_under_way(list.size());
  for (std::size_t s = 0; s < list.size(); ++s) {
    for (const std::int32_t before : list[s].after) {
      if (before >= 0) is_under_way[static_cast<std::size_t>(before)] = false;
    }
    if (list[s].kind == StepKind::Exchange) {
      const auto awaits = [s](const Step& step) {
        return std::ranges::find(step.after, static_cast<std::int32_t>(s)) != step.after.end();
      };
      const Role role = plan.exchanges[static_cast<std::size_t>(list[s].index)].role;
      is_under_way[s] = (!is_forward && is_returning(role)) || std::ranges::any_of(list, awaits);
      continue;
    }
    const bool is_beside =
        may_be_beside && std::ranges::find(is_under_way, true) != is_under_way.end();
    const Range calls = calls_of[static_cast<std::size_t>(list[s].index)];
    for (std::int32_t c = calls.begin; c < calls.end; ++c) {
      AttendCall& call = attends[static_cast<std::size_t>(c)];
      call.is_beside[static_cast<std::size_t>(pass)] = is_beside;
    }
  }
}

void RankSteps::add_calls(const Attend& attend) {
  const auto first = static_cast<std::int32_t>(attends.size());
  const std::vector<Range> rows = share_rows(*this, attend.q_segment);
  for (std::size_t share = 0; share < rows.size(); ++share) {
    AttendCall call = make_call(*this, attend, rows[share]);
    call.share = static_cast<std::int32_t>(share);
    if (shares.count > 1 && attend.k_segment == 0) take_keys_of_share(shares, call);
    call.is_idle = shares.count > 1 && call.slices.empty() && call.queries < 0 &&
                   attend.heads == Range{0, plan.config.num_heads_kv};
    if (rows.size() == 1 || !call.q_rows.empty()) attends.push_back(std::move(call));
  }
  // The first share's call writes what idle ones leave: so all of them are idle or none.
  const std::span added(attends.begin() + first, attends.end());
  const bool are_idle =
      added.size() == rows.size() && std::ranges::all_of(added, &AttendCall::is_idle);
  for (AttendCall& call : added) call.is_idle = are_idle;
  calls_of.push_back({first, static_cast<std::int32_t>(attends.size())});
}

const SegmentRows& RankSteps::rows_of(const Exchange& exchange) const {
  const auto& segments = space_of(exchange.role) == Space::Queries ? q_segments : k_segments;
  return segments[static_cast<std::size_t>(exchange.segment)];
}

comm::EveryonesRows RankSteps::everyones_rows(Space space, std::int32_t segment,
                                              bool is_back) const {
  return [this, space, segment, is_back] {
    std::vector<RowExchange> all(plan.ranks.size());
    for (const Transfer& t : plan.transfers) {
      if (t.space != space || t.dst_segment != segment) continue;
      RowExchange& owner = all[static_cast<std::size_t>(t.src)];
      RowExchange& reader = all[static_cast<std::size_t>(t.dst)];
      (is_back ? owner.needed : owner.owned).push_back({t.dst, t.src_row, t.num_rows});
      (is_back ? reader.owned : reader.needed).push_back({t.src, t.dst_row, t.num_rows});
    }
    return all;
  };
}

bool RankSteps::is_arrival() const {
  if (!planner::is_single_attend(plan) || attends.size() != 1 || shares.count > 1) return false;
  const AttendCall& call = attends.front();
  if (call.keys < 0 || call.q_rows.empty() || plan.exchanges.size() != 2) return false;
  const auto is_of_keys = [](const Exchange& e) { return space_of(e.role) == Space::Keys; };
  if (!std::ranges::all_of(plan.exchanges, is_of_keys)) return false;
  const SegmentRows& rows = rows_of_keys(call);
  const comm::WireOrder& needed = rows.filling.needed;
  return needed.num_rows > 0 && needed.num_own_rows == rows.own.size() && rows.own.begin == 0;
}

bool RankSteps::has_work_beside_exchange() const {
  return std::ranges::any_of(attends, [](const AttendCall& call) {
    return !call.slices.empty() && (call.is_beside[0] || call.is_beside[1]);
  });
}

bool RankSteps::is_own_keys_copied() const {
  return std::ranges::any_of(k_segments, [](const auto& rows) { return !rows.own.empty(); });
}

std::int32_t RankSteps::filling_exchange(Space space, std::int32_t segment, Range heads) const {
  if (segment == 0) return -1;
  const auto fills = [&](const Exchange& exchange) {
    return !is_returning(exchange.role) && space_of(exchange.role) == space &&
           exchange.segment == segment && exchange.heads.begin <= heads.begin &&
           heads.end <= exchange.heads.end;
  };
  const auto found = std::ranges::find_if(plan.exchanges, fills);
  MAGI_CHECK(found != plan.exchanges.end());
  return static_cast<std::int32_t>(found - plan.exchanges.begin());
}

Range RankSteps::all_q_heads(const AttendCall& call) const {
  const std::int32_t first = call.share * plan.config.num_heads_q;
  return {first + call.q_heads.begin, first + call.q_heads.end};
}

Range RankSteps::q_heads(Range heads) const {
  const std::int32_t group = plan.config.num_heads_q / plan.config.num_heads_kv;
  return {heads.begin * group, heads.end * group};
}

}  // namespace magi
