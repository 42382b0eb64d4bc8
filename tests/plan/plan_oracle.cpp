// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <vector>

#include "plan/check/structure.hpp"
#include "plan/cost/report.hpp"
#include "plan/plan_support.hpp"

namespace magi::testing {
namespace {

/// One row that a rank sends another to fill a segment.
struct SentRow {
  Space space = Space::Keys;
  std::int32_t segment = 0;
  std::int32_t owner = 0;
  std::int32_t from = 0;
  std::int32_t to = 0;
};

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void require(bool is_right, const char* what) {
  if (!is_right) throw Wrong(what);
}

/// Any index: a negative one is far outside every table, so that at() refuses it.
std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

const Placement& placement_of(const Plan& plan, Space space) {
  return space == Space::Keys ? plan.placement_k : plan.placement_q;
}
const std::vector<Segment>& segments_of(const Plan& plan, std::size_t rank, Space space) {
  return space == Space::Keys ? plan.ranks.at(rank).k.segments : plan.ranks.at(rank).q.segments;
}
Space space_moved(Role role) {
  return role == Role::KeysValues || role == Role::KeyGradients ? Space::Keys : Space::Queries;
}
bool goes_back(Role role) {
  return role == Role::Results || role == Role::KeyGradients || role == Role::QueryGradients;
}
bool sees(const BandSlice& slice, std::int32_t q, std::int32_t k) {
  return q >= slice.q0 && q < slice.q1 && k >= slice.k0 && k < slice.k1 && k - q >= slice.d_min &&
         k - q <= slice.d_max;
}

/// Rows of one head share: a short last chunk counts as a full one where there are several shares.
std::int32_t rows_of_share(const Plan& plan, Space space) {
  const Placement& placement = placement_of(plan, space);
  if (plan.num_head_shares == 1) return placement.num_rows;
  return static_cast<std::int32_t>(placement.chunk_rank.size()) * placement.chunk_size;
}

/// Rows of a rank's shard, from the chunk of each row: for each share all of them.
std::vector<std::int32_t> shard_rows(const Plan& plan, Space space, std::size_t rank) {
  const Placement& placement = placement_of(plan, space);
  const std::int32_t num_rows = rows_of_share(plan, space);
  std::vector<std::int32_t> rows;
  for (std::int32_t share = 0; share < plan.num_head_shares; ++share) {
    for (std::int32_t row = 0; row < num_rows; ++row) {
      const std::int32_t owner = placement.chunk_rank.at(at(row / placement.chunk_size));
      if (owner == static_cast<std::int32_t>(rank)) rows.push_back(share * num_rows + row);
    }
  }
  return rows;
}

std::int32_t heads_of_share(const Plan& plan) {
  return plan.config.num_heads_kv / plan.num_head_shares;
}

/// A row of a segment: which global row it holds, and whose it was.
struct Held {
  std::int32_t row = -1;
  std::int32_t owner = -1;
  int num_fills = 0;
  bool is_read = false;
};

/// What stands where, and what it is used for.
class Oracle {
 public:
  explicit Oracle(const Plan& plan) : plan_(plan) {}

  void judge() {
    judge_placements();
    fill();
    judge_order_of_transfers();
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) judge_slices(r);
    for (std::int32_t head = 0; head < heads_of_share(plan_); ++head) judge_pairs(head);
    judge_received();
    judge_exchanges();
    for (const bool is_backward : {false, true}) {
      judge_deadlock(is_backward);
      for (std::size_t r = 0; r < plan_.ranks.size(); ++r) judge_pass(r, is_backward);
    }
  }

 private:
  void judge_placements() const {
    require(plan_.ranks.size() == at(plan_.config.num_ranks), "number of ranks");
    require(plan_.num_head_shares >= 1 && plan_.config.num_heads_kv % plan_.num_head_shares == 0 &&
                plan_.config.num_ranks % plan_.num_head_shares == 0,
            "head shares that do not divide");
    for (const Space space : {Space::Keys, Space::Queries}) {
      const Placement& placement = placement_of(plan_, space);
      const std::int32_t rows = space == Space::Keys ? plan_.mask.rows_k : plan_.mask.rows_q;
      require(placement.num_rows >= rows, "rows without a place");
      for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
        const auto& segments = segments_of(plan_, r, space);
        require(segments.size() == segments_of(plan_, 0, space).size(), "number of segments");
        require(segments.at(0).owner == static_cast<std::int32_t>(r), "owner of own rows");
        require(at(segments.at(0).num_rows) == shard_rows(plan_, space, r).size(), "own rows");
        for (std::size_t s = 1; s < segments.size(); ++s) {
          require(segments[s].owner == kManyOwners, "owner of received rows");
          require(segments[s].num_rows >= 0, "negative rows");
        }
      }
    }
  }

  void fill() {
    for (const Space space : {Space::Keys, Space::Queries}) {
      auto& ranks = held_[space];
      std::vector<std::vector<std::int32_t>> shards;
      for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
        shards.push_back(shard_rows(plan_, space, r));
        ranks.emplace_back();
        for (const Segment& segment : segments_of(plan_, r, space)) {
          ranks.back().emplace_back(at(segment.num_rows));
        }
        for (std::size_t i = 0; i < shards[r].size(); ++i) {
          ranks[r][0].at(i) = {shards[r][i], static_cast<std::int32_t>(r), 1};
        }
      }
      for (const Transfer& t : plan_.transfers) {
        if (t.space != space) continue;
        require(t.num_rows >= 1 && t.dst_segment >= 1, "an empty transfer");
        require(t.src != t.dst || plan_.stages_in_flight == 0, "copies in turns");
        for (std::int32_t i = 0; i < t.num_rows; ++i) {
          Held& held = ranks.at(at(t.dst)).at(at(t.dst_segment)).at(at(t.dst_row + i));
          held.row = shards.at(at(t.src)).at(at(t.src_row + i));
          held.owner = t.src;
          ++held.num_fills;
        }
      }
    }
  }

  void judge_order_of_transfers() const {
    for (std::size_t i = 1; i < plan_.transfers.size(); ++i) {
      const Transfer& a = plan_.transfers[i - 1];
      const Transfer& b = plan_.transfers[i];
      const auto key = [](const Transfer& t) {
        return std::vector<std::int32_t>{static_cast<std::int32_t>(t.space), t.dst, t.dst_segment,
                                         t.dst_row};
      };
      require(key(a) < key(b), "order of transfers");
    }
  }

  /// Slices belong to one group of attention calls each, in order, and stay inside its segments.
  void judge_slices(std::size_t r) const {
    const RankPlan& rank = plan_.ranks.at(r);
    std::vector<const Attend*> reader(rank.slices.size(), nullptr);
    for (const Attend& attend : rank.attends) {
      const auto is_within = [](Range range, std::int64_t size) {
        return range.begin >= 0 && range.begin <= range.end && range.end <= size;
      };
      require(at(attend.q_segment) < rank.q.segments.size() &&
                  at(attend.k_segment) < rank.k.segments.size() &&
                  is_within(attend.heads, heads_of_share(plan_)) && !attend.heads.empty() &&
                  is_within(attend.slices, static_cast<std::int64_t>(rank.slices.size())),
              "an attention call on what is not there");
      for (std::int32_t s = attend.slices.begin; s < attend.slices.end; ++s) {
        const Attend*& first = reader.at(at(s));
        if (first == nullptr) first = &attend;
        require(first->slices == attend.slices && first->q_segment == attend.q_segment &&
                    first->k_segment == attend.k_segment,
                "slices shared by attends of other rows");
        const BandSlice& slice = rank.slices.at(at(s));
        require(slice.q0 >= 0 && slice.q0 <= slice.q1 && slice.k0 >= 0 && slice.k0 <= slice.k1 &&
                    slice.q1 <= rank.q.segments.at(at(attend.q_segment)).num_rows &&
                    slice.k1 <= rank.k.segments.at(at(attend.k_segment)).num_rows,
                "a slice outside its segments");
        require(std::abs(std::int64_t{slice.d_min}) <= kBandInfinity &&
                    std::abs(std::int64_t{slice.d_max}) <= kBandInfinity,
                "a diagonal beyond all rows");
        if (s == attend.slices.begin) continue;
        const BandSlice& before = rank.slices.at(at(s - 1));
        require(before.q0 < slice.q0 || (before.q0 == slice.q0 && before.k0 <= slice.k0),
                "order of slices");
      }
    }
    require(std::ranges::count(reader, nullptr) == 0, "a slice that nothing reads");
  }

  void judge_pairs(std::int32_t head) {
    const std::int32_t rows_q = rows_of_share(plan_, Space::Queries);
    const std::int32_t rows_k = rows_of_share(plan_, Space::Keys);
    const auto stride = at(rows_k) * at(plan_.num_head_shares);
    std::vector<int> times(at(rows_q) * at(plan_.num_head_shares) * stride, 0);
    for (const BandSlice& slice : plan_.mask.slices) {
      for (std::int32_t q = slice.q0; q < slice.q1; ++q) {
        for (std::int32_t k = slice.k0; k < slice.k1; ++k) {
          if (!sees(slice, q, k)) continue;
          for (std::int32_t share = 0; share < plan_.num_head_shares; ++share) {
            --times.at(at(share * rows_q + q) * stride + at(share * rows_k + k));
          }
        }
      }
    }
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
      const RankPlan& rank = plan_.ranks[r];
      for (const Attend& attend : rank.attends) {
        if (head < attend.heads.begin || head >= attend.heads.end) continue;
        auto& queries = held_[Space::Queries].at(r).at(at(attend.q_segment));
        auto& keys = held_[Space::Keys].at(r).at(at(attend.k_segment));
        for (std::int32_t s = attend.slices.begin; s < attend.slices.end; ++s) {
          const BandSlice& slice = rank.slices.at(at(s));
          for (std::int32_t q = slice.q0; q < slice.q1; ++q) {
            for (std::int32_t k = slice.k0; k < slice.k1; ++k) {
              if (!sees(slice, q, k)) continue;
              queries.at(at(q)).is_read = keys.at(at(k)).is_read = true;
              ++times.at(at(queries[at(q)].row) * stride + at(keys[at(k)].row));
            }
          }
        }
      }
    }
    require(std::ranges::all_of(times, [](int count) { return count == 0; }), "times of a pair");
  }

  /// Each received row once, all of them read, in global order.
  void judge_received() const {
    for (const auto& [space, ranks] : held_) {
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        std::set<std::int32_t> arrived;
        for (std::size_t s = 1; s < ranks[r].size(); ++s) {
          std::int32_t last = -1;
          for (const Held& held : ranks[r][s]) {
            require(held.num_fills == 1, "fills of a row");
            if (held.owner == static_cast<std::int32_t>(r)) continue;
            require(held.is_read, "a row moved for nobody");
            require(arrived.insert(held.row).second, "a row moved twice");
            require(held.row > last, "order of received rows");
            last = held.row;
          }
        }
      }
    }
  }

  /// By node only between nodes, and alike wherever the same rows move.
  void judge_hop(const Exchange& exchange) const {
    const std::int32_t node = plan_.config.devices_per_node;
    require(exchange.hop == 0 || (exchange.hop == 1 && node >= 1 && plan_.config.num_ranks > node),
            "hop");
    for (const Exchange& other : plan_.exchanges) {
      const bool is_of_same_rows = space_moved(other.role) == space_moved(exchange.role) &&
                                   other.segment == exchange.segment;
      require(!is_of_same_rows || other.hop == exchange.hop, "hops of the same rows");
    }
  }

  /// Each head of each filled segment moves once for each role, and stages count up.
  void judge_exchanges() const {
    require(plan_.stages_in_flight >= 0, "turns");
    std::set<std::int32_t> stages;  // that take turns in memory, each one exchange of keys
    std::int32_t last_stage = 0;
    std::map<std::pair<int, std::int32_t>, std::vector<int>> moved;
    for (const Exchange& exchange : plan_.exchanges) {
      judge_hop(exchange);
      if (plan_.stages_in_flight > 0) {
        require(space_moved(exchange.role) == Space::Keys, "queries in turns");
        require(goes_back(exchange.role) || stages.insert(exchange.stage).second, "stage of two");
      }
      const int role = static_cast<int>(exchange.role);
      require(role >= 0 && role < kNumRoles, "role");
      const Space space = space_moved(exchange.role);
      require(exchange.segment >= 1 && at(exchange.segment) < segments_of(plan_, 0, space).size(),
              "segment of an exchange");
      auto& heads = moved[{role, exchange.segment}];
      heads.resize(at(heads_of_share(plan_)));
      require(exchange.heads.begin < exchange.heads.end, "an exchange without heads");
      for (std::int32_t h = exchange.heads.begin; h < exchange.heads.end; ++h) ++heads.at(at(h));
      if (goes_back(exchange.role)) {
        const bool is_known = std::ranges::any_of(plan_.exchanges, [&](const Exchange& other) {
          return !goes_back(other.role) && space_moved(other.role) == space &&
                 other.segment == exchange.segment && other.heads == exchange.heads &&
                 other.stage == exchange.stage;
        });
        require(is_known, "stage of what goes back");
      } else {
        require(exchange.stage == last_stage || exchange.stage == last_stage + 1, "stage");
        last_stage = exchange.stage;
      }
    }
    for (int i = 0; i < kNumRoles; ++i) {
      const Space space = space_moved(static_cast<Role>(i));
      for (std::size_t s = 1; s < segments_of(plan_, 0, space).size(); ++s) {
        const bool is_filled = std::ranges::any_of(plan_.transfers, [&](const Transfer& t) {
          return t.space == space && at(t.dst_segment) == s;
        });
        const auto heads = moved.find({i, static_cast<std::int32_t>(s)});
        require((heads != moved.end()) == is_filled, "exchanges of a segment");
        if (!is_filled) continue;
        require(std::ranges::all_of(heads->second, [](int n) { return n == 1; }),
                "heads of an exchange");
      }
    }
  }

  bool is_in_pass(const Exchange& exchange, bool is_backward) const {
    return !goes_back(exchange.role) || (exchange.role == Role::Results) != is_backward;
  }

  /// All ranks run their lists: an exchange moves when each of them has come to it.
  void judge_deadlock(bool is_backward) const {
    std::vector<std::int32_t> expected;
    for (std::size_t e = 0; e < plan_.exchanges.size(); ++e) {
      if (is_in_pass(plan_.exchanges[e], is_backward)) {
        expected.push_back(static_cast<std::int32_t>(e));
      }
    }
    for (const RankPlan& rank : plan_.ranks) {
      std::vector<std::int32_t> started;
      const auto& steps = is_backward ? rank.backward : rank.forward;
      for (std::size_t i = 0; i < steps.size(); ++i) {
        if (steps[i].kind == StepKind::Exchange) started.push_back(steps[i].index);
        for (const std::int32_t before : steps[i].after) {
          require(before >= -1 && before < static_cast<std::int32_t>(i), "a wait for a later step");
        }
      }
      require(started == expected, "a rank waits in another exchange than others");
    }
  }

  void judge_pass(std::size_t r, bool is_backward) const {
    const RankPlan& rank = plan_.ranks.at(r);
    const auto& steps = is_backward ? rank.backward : rank.forward;
    std::vector<int> runs(rank.attends.size(), 0);
    std::set<std::pair<std::int32_t, std::int32_t>> written;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Step& step = steps[i];
      judge_memory(rank, steps, i);
      if (step.kind == StepKind::Exchange) {
        judge_return(rank, steps, i);
        continue;
      }
      require(step.kind == StepKind::Attend, "kind of a step");
      const Attend& attend = rank.attends.at(at(step.index));
      ++runs[at(step.index)];
      for (std::int32_t h = attend.heads.begin; h < attend.heads.end; ++h) {
        require(h >= 0 && h < heads_of_share(plan_), "head of an attention call");
        if (attend.k_segment != 0) judge_source(steps, step, Space::Keys, attend.k_segment, h);
        if (attend.q_segment != 0) judge_source(steps, step, Space::Queries, attend.q_segment, h);
        const bool is_first = written.insert({attend.q_segment, h}).second;
        require(is_first != attend.is_merging, "merging");
      }
    }
    require(std::ranges::all_of(runs, [](int n) { return n == 1; }), "runs of an attention call");
    for (std::size_t s = 0; s < rank.q.segments.size(); ++s) {
      if (rank.q.segments[s].num_rows == 0) continue;
      for (std::int32_t h = 0; h < heads_of_share(plan_); ++h) {
        require(written.contains({static_cast<std::int32_t>(s), h}), "rows that nothing writes");
      }
    }
  }

  /// One of the awaited exchanges brings the rows for this head.
  void judge_source(const std::vector<Step>& steps, const Step& step, Space space,
                    std::int32_t segment, std::int32_t head) const {
    const bool is_awaited = std::ranges::any_of(step.after, [&](std::int32_t before) {
      if (before < 0 || steps.at(at(before)).kind != StepKind::Exchange) return false;
      const Exchange& e = plan_.exchanges.at(at(steps[at(before)].index));
      return !goes_back(e.role) && space_moved(e.role) == space && e.segment == segment &&
             head >= e.heads.begin && head < e.heads.end;
    });
    require(is_awaited, "rows that may not be there");
  }

  /// What goes back is complete: attends run in order, so the last awaited one tells.
  void judge_return(const RankPlan& rank, const std::vector<Step>& steps, std::size_t i) const {
    const Exchange& exchange = plan_.exchanges.at(at(steps[i].index));
    if (!goes_back(exchange.role)) return;
    for (std::size_t j = 0; j < steps.size(); ++j) {
      if (steps[j].kind != StepKind::Attend) continue;
      const Attend& attend = rank.attends.at(at(steps[j].index));
      const std::int32_t segment =
          space_moved(exchange.role) == Space::Keys ? attend.k_segment : attend.q_segment;
      const bool is_used = std::max(attend.heads.begin, exchange.heads.begin) <
                           std::min(attend.heads.end, exchange.heads.end);
      if (!is_used || (segment != 0 && segment != exchange.segment)) continue;
      const bool is_awaited = std::ranges::any_of(steps[i].after, [&](std::int32_t before) {
        return before >= static_cast<std::int32_t>(j) &&
               steps.at(at(before)).kind == StepKind::Attend;
      });
      require(is_awaited, "sums that may not be whole");
    }
  }

  /// The exchange that brings a step's keys, or which the step is; null: own keys.
  const Exchange* keys_of(const RankPlan& rank, const Step& step) const {
    if (step.kind == StepKind::Exchange) return &plan_.exchanges.at(at(step.index));
    const Attend& attend = rank.attends.at(at(step.index));
    const auto found = std::ranges::find_if(plan_.exchanges, [&](const Exchange& e) {
      return e.role == Role::KeysValues && e.segment == attend.k_segment &&
             e.heads.begin <= attend.heads.begin && attend.heads.end <= e.heads.end;
    });
    return found == plan_.exchanges.end() ? nullptr : &*found;
  }

  /// Where stages take turns in memory, a step that writes there has waited for the exchange of
  /// what was there, or for the last attention call that reads it or one behind that.
  void judge_memory(const RankPlan& rank, const std::vector<Step>& steps, std::size_t i) const {
    const Exchange* writer = keys_of(rank, steps[i]);
    if (plan_.stages_in_flight == 0 || writer == nullptr) return;
    const bool fills = steps[i].kind == StepKind::Exchange && writer->role == Role::KeysValues;
    std::int32_t last_read = -1, moved = -1;
    for (std::size_t j = 0; j < steps.size(); ++j) {
      const Exchange* other = keys_of(rank, steps[j]);
      if (other == nullptr || other->stage + plan_.stages_in_flight != writer->stage) continue;
      const bool is_attend = steps[j].kind == StepKind::Attend;
      const bool is_there = is_attend ? fills : fills == (other->role == Role::KeysValues);
      if (is_there) (is_attend ? last_read : moved) = static_cast<std::int32_t>(j);
    }
    const bool is_awaited = std::ranges::any_of(steps[i].after, [&](std::int32_t step) {
      if (last_read < 0) return step == moved;
      return step >= last_read && steps.at(at(step)).kind == StepKind::Attend;
    });
    require((last_read < 0 && moved < 0) || is_awaited, "memory that another stage uses");
  }

  const Plan& plan_;
  std::map<Space, std::vector<std::vector<std::vector<Held>>>> held_;
};

/// Who sends a row of a transfer: its owner, or by node the first rank behind the owner's place in
/// the reader's node that gets it too.
std::int32_t sender_of(const Plan& plan, const Transfer& transfer, std::int32_t row) {
  const bool goes_by_node = std::ranges::any_of(plan.exchanges, [&](const Exchange& exchange) {
    return exchange.hop == 1 && space_moved(exchange.role) == transfer.space &&
           exchange.segment == transfer.dst_segment;
  });
  const std::int32_t size = plan.config.devices_per_node;
  if (!goes_by_node || size < 1 || transfer.src / size == transfer.dst / size) {
    return transfer.src;
  }
  const std::int32_t first = transfer.dst / size * size;
  for (std::int32_t i = 0; i < size; ++i) {
    const std::int32_t place = first + (transfer.src % size + i) % size;
    const bool is_reader = std::ranges::any_of(plan.transfers, [&](const Transfer& t) {
      return t.space == transfer.space && t.dst_segment == transfer.dst_segment &&
             t.src == transfer.src && t.dst == place && t.src_row <= row &&
             row < t.src_row + t.num_rows;
    });
    if (is_reader) return place == transfer.dst ? transfer.src : place;
  }
  return transfer.src;
}

/// Query rows of the sequence that a rank holds.
std::int64_t own_rows(const Plan& plan, std::size_t rank) {
  if (plan.num_head_shares == 1) return plan.ranks[rank].q.segments.at(0).num_rows;
  Plan whole = plan;
  whole.num_head_shares = 1;
  return static_cast<std::int64_t>(shard_rows(whole, Space::Queries, rank).size());
}

/// Pairs of a rank's slices.
std::int64_t pairs_of(const RankPlan& rank) {
  std::int64_t pairs = 0;
  for (const BandSlice& slice : rank.slices) {
    for (std::int32_t q = slice.q0; q < slice.q1; ++q) {
      for (std::int32_t k = slice.k0; k < slice.k1; ++k) pairs += sees(slice, q, k) ? 1 : 0;
    }
  }
  return pairs;
}

std::vector<SentRow> sent_rows_of(const Plan& plan) {
  std::vector<SentRow> sent;
  for (const Transfer& t : plan.transfers) {
    if (t.src == t.dst) continue;
    for (std::int32_t row = t.src_row; row < t.src_row + t.num_rows; ++row) {
      sent.push_back({t.space, t.dst_segment, t.src, sender_of(plan, t, row), t.dst});
    }
  }
  return sent;
}

PlanReport figures_of(const Plan& plan) {
  PlanReport figures = plan.report;
  const PlanConfig& config = plan.config;
  if (plan.num_head_shares < 1) throw std::out_of_range("no head shares");
  const std::int64_t heads_q = config.num_heads_q / plan.num_head_shares;
  const std::size_t num_ranks = plan.ranks.size();
  figures.rank_runs = runs_after_others(plan.mask, plan.placement_q);
  figures.rank_area.assign(num_ranks, 0);
  figures.rank_rows.assign(num_ranks, 0);
  figures.remote_rows.assign(num_ranks, 0);
  figures.pair_bytes.assign(num_ranks * num_ranks, 0);
  for (std::size_t r = 0; r < num_ranks; ++r) {
    figures.rank_rows[r] = own_rows(plan, r);
    figures.rank_area[r] = pairs_of(plan.ranks[r]);
  }
  const auto send = [&](std::int32_t from, std::int32_t to, std::int64_t elements) {
    figures.pair_bytes.at(at(from) * num_ranks + at(to)) += elements * config.element_bytes;
  };
  const std::vector<SentRow> sent = sent_rows_of(plan);
  for (const auto& [space, segment, owner, from, to] : sent) {
    if (space == Space::Keys) {
      ++figures.remote_rows.at(at(to));
      send(from, to, std::int64_t{heads_of_share(plan)} * (config.head_dim_qk + config.head_dim_v));
    } else {
      send(from, to, heads_q * config.head_dim_qk);
      send(to, from, heads_q * config.head_dim_v);
    }
  }
  figures.total_bytes = 0;
  for (const std::int64_t bytes : figures.pair_bytes) figures.total_bytes += bytes;
  std::int64_t area = 0;
  for (const std::int64_t pairs : figures.rank_area) area += pairs;
  const auto most = static_cast<double>(*std::ranges::max_element(figures.rank_area));
  figures.balance =
      area == 0 ? 1.0 : most * static_cast<double>(num_ranks) / static_cast<double>(area);
  figures.ring_bytes = (static_cast<std::int64_t>(num_ranks) - 1) * plan.mask.rows_k *
                       config.num_heads_kv * (config.head_dim_qk + config.head_dim_v) *
                       config.element_bytes;
  return figures;
}

void judge_figures(const Plan& plan) {
  const PlanReport figures = figures_of(plan);
  const PlanReport& report = plan.report;
  require(figures.rank_area == report.rank_area && figures.rank_rows == report.rank_rows &&
              figures.remote_rows == report.remote_rows && figures.rank_runs == report.rank_runs,
          "counts of rows, pairs or runs");
  require(figures.pair_bytes == report.pair_bytes && figures.total_bytes == report.total_bytes &&
              figures.ring_bytes == report.ring_bytes,
          "counts of bytes");
  require(std::abs(figures.balance - report.balance) < 1e-9, "balance");
  require(plan.config.devices_per_node >= 0, "devices of a node");
  const PlanReport predicted = planner::make_report(plan);
  require(predicted.forward_seconds == report.forward_seconds &&
              predicted.backward_seconds == report.backward_seconds &&
              predicted.exposed_comm_seconds == report.exposed_comm_seconds,
          "predicted times");
  require(predicted.lower_bound_bytes == report.lower_bound_bytes &&
              predicted.rank_memory == report.rank_memory,
          "a bound of other limits, or memory");
  const auto bound = plan.config.max_exchange_bytes.value_or(0);
  const auto bytes = *std::ranges::max_element(report.rank_memory);
  require(bound == 0 || bytes <= bound, "more memory than asked for");
  require(plan.digest == plan_digest(plan), "digest");
}

}  // namespace

std::string judge_plan(const Plan& plan) {
  try {
    Oracle(plan).judge();
    judge_figures(plan);
    return "";
  } catch (const Wrong& wrong) {
    return wrong.what();
  } catch (const std::exception&) {
    return "tables that point outside themselves";
  }
}

bool renew_figures(Plan& plan) {
  try {
    plan.report = figures_of(plan);
    if (planner::check_structure(plan).empty()) {
      const PlanReport predicted = planner::make_report(plan);
      plan.report.forward_seconds = predicted.forward_seconds;
      plan.report.backward_seconds = predicted.backward_seconds;
      plan.report.exposed_comm_seconds = predicted.exposed_comm_seconds;
      plan.report.lower_bound_bytes = predicted.lower_bound_bytes;
      plan.report.rank_memory = predicted.rank_memory;
    }
    plan.digest = plan_digest(plan);
    return true;
  } catch (const std::out_of_range&) {
    return false;
  }
}

}  // namespace magi::testing
