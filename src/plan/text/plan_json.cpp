// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <tuple>

#include "base/check.hpp"
#include "base/json.hpp"
#include "magi/plan.hpp"
#include "mask/slice_json.hpp"
#include "plan/check/structure.hpp"
#include "plan/cost/report.hpp"
#include "plan/text/cost_fields.hpp"
#include "plan/value/config.hpp"

// The schema of a plan file: keys in the order in which they are written, records as rows of
// integers.
namespace magi {
namespace {

using namespace planner;
using json::Column;
using json::Field;
using json::Value;
using Fields = std::vector<Field>;
using Row = std::span<const std::int32_t>;

constexpr std::int32_t kPlanVersion = 5;
constexpr std::int32_t kMaxInt = std::numeric_limits<std::int32_t>::max();
constexpr Column kRows{0, kMaxRows, {}};
constexpr Column kCount{0, kMaxInt, {}};
constexpr Column kStep{-1, kMaxInt, {}};

/// A name that stands for an enumerator.
Value stage_mode(StageMode& mode) {
  static constexpr std::array<std::string_view, 3> kNames = {"auto", "heads", "rows"};
  return json::text(
      "auto, heads, rows",
      [&mode](std::string_view seen) {
        const auto found = std::ranges::find(kNames, seen);
        mode = static_cast<StageMode>(found - kNames.begin());
        return found != kNames.end();
      },
      [&mode] { return std::string(kNames.at(static_cast<std::size_t>(mode))); });
}

/// The same, with functions that turn one into the other.
template <typename Enum>
Value named(Enum& target, const char* allowed, Enum (*from_name)(std::string_view),
            const char* (*to_name)(Enum)) {
  return json::text(
      allowed,
      [&target, from_name](std::string_view seen) {
        target = from_name(seen);
        return true;
      },
      [&target, to_name] { return std::string(to_name(target)); });
}

/// 16 hexadecimal digits: JSON numbers of many readers end at 2^53.
Value digest(std::uint64_t& value) {
  return json::text(
      "16 hexadecimal digits",
      [&value](std::string_view digits) {
        const char* end = digits.data() + digits.size();
        const auto result = std::from_chars(digits.data(), end, value, 16);
        return digits.size() == 16 && result.ec == std::errc{} && result.ptr == end;
      },
      [&value] {
        std::string text(16, '0');
        std::uint64_t rest = value;
        for (std::size_t i = 16; i-- > 0; rest >>= 4) text[i] = "0123456789abcdef"[rest & 15u];
        return text;
      });
}

Value mask(Mask& target) {
  return json::object(
      [&target] {
        return Fields{{"rows_q", json::integer(target.rows_q, 1, kMaxRows)},
                      {"rows_k", json::integer(target.rows_k, 1, kMaxRows)},
                      {"slices", slice_rows(target.slices)}};
      },
      ", ");
}

Value placement_config(PlacementConfig& c) {
  return json::object([&c] {
    return Fields{{"algorithm",
                   named(c.algorithm, "names of placements", placement_from_name, placement_name)},
                  {"chunk_size", json::optional_integer(c.chunk_size, 1, kMaxRows)},
                  {"min_chunks_per_rank", json::integer(c.min_chunks_per_rank, 1, kMaxRows)},
                  {"uneven_shard", json::boolean(c.uneven_shard)},
                  {"token_tolerance", json::number(c.token_tolerance)},
                  {"seed", json::unsigned64(c.seed)}};
  });
}

Value optional_placement_config(std::optional<PlacementConfig>& target) {
  Value value{.allowed = "an object or null"};
  value.take = [&target](const json::Scalar& seen) {
    target.reset();
    return seen.kind == json::Scalar::Kind::Null;
  };
  value.write_scalar = [&target](std::string& out) { return !target && !(out += "null").empty(); };
  value.open = [&target] {
    if (!target) target.emplace();
    return placement_config(*target).open();
  };
  value.separator = ",\n";
  return value;
}

Value cost(CostModel& c) {
  return json::object([&c] { return cost_fields(c); });
}

Value config(PlanConfig& c) {
  return json::object([&c] {
    return Fields{{"num_ranks", json::integer(c.num_ranks, 1, kMaxInt)},
                  {"num_heads_q", json::integer(c.num_heads_q, 1, kMaxInt)},
                  {"num_heads_kv", json::integer(c.num_heads_kv, 1, kMaxInt)},
                  {"head_dim_qk", json::integer(c.head_dim_qk, 1, kMaxInt)},
                  {"head_dim_v", json::integer(c.head_dim_v, 1, kMaxInt)},
                  {"element_bytes", json::integer(c.element_bytes, 1, kMaxInt)},
                  {"placement", placement_config(c.placement)},
                  {"placement_k", optional_placement_config(c.placement_k)},
                  {"overlap_degree", json::optional_integer(c.overlap_degree, 0, kMaxDegree)},
                  {"work", named(c.work, "names of what travels", work_from_name, work_name)},
                  {"head_shares", json::integer(c.head_shares, 0, kMaxHeads), c.head_shares == 0},
                  {"stage_mode", stage_mode(c.stage_mode)},
                  {"min_stage_rows", json::integer(c.min_stage_rows, 1, kMaxRows)},
                  {"devices_per_node", json::integer(c.devices_per_node, 0, kMaxRanks),
                   c.devices_per_node == 0},
                  {"max_runs", json::optional_integer(c.max_runs, 1, kMaxRows), !c.max_runs},
                  {"cost", cost(c.cost)},
                  {"max_exchange_bytes", json::optional_integer64(c.max_exchange_bytes),
                   !c.max_exchange_bytes.has_value()}};
  });
}

Value placement(Placement& p) {
  Value value = json::object(
      [&p] {
        return Fields{{"num_rows", json::integer(p.num_rows, 1, kMaxRows)},
                      {"chunk_size", json::integer(p.chunk_size, 1, kMaxRows)},
                      {"num_ranks", json::integer(p.num_ranks, 1, kMaxRanks)},
                      {"chunk_rank", json::integers(p.chunk_rank, 0, kMaxRanks - 1)}};
      },
      ", ");
  value.close = [&p] {
    p = placement_from_chunks(p.num_rows, p.chunk_size, p.num_ranks, std::move(p.chunk_rank));
  };
  return value;
}

Value space(TokenSpace& target) {
  return json::table<Segment, 2>(
      target.segments, "[owner, rows]", {Column{kManyOwners, kMaxRanks, {}}, kRows},
      [](const Segment& s) {
        return std::array{s.owner, s.num_rows};
      },
      [](Row v) {
        return Segment{v[0], v[1]};
      });
}

Value exchanges(std::vector<Exchange>& target) {
  return json::table<Exchange, 6>(
      target, "[role, segment, first head, end head, hop, stage]",
      {Column{0, kNumRoles - 1, {}}, kCount, kCount, kCount, Column{0, 1, {}},
       Column{0, kMaxDegree, {}}},
      [](const Exchange& e) {
        return std::array{static_cast<std::int32_t>(e.role),
                          e.segment,
                          e.heads.begin,
                          e.heads.end,
                          e.hop,
                          e.stage};
      },
      [](Row v) {
        return Exchange{static_cast<Role>(v[0]), v[1], {v[2], v[3]}, v[4], v[5]};
      });
}

Value attends(std::vector<Attend>& target) {
  return json::table<Attend, 7>(
      target, "[q segment, k segment, first head, end head, first slice, end slice, is merging]",
      {kCount, kCount, kCount, kCount, kCount, kCount, Column{0, 1, {}}},
      [](const Attend& a) {
        return std::array{a.q_segment,    a.k_segment,  a.heads.begin,       a.heads.end,
                          a.slices.begin, a.slices.end, a.is_merging ? 1 : 0};
      },
      [](Row v) {
        return Attend{v[0], v[1], {v[2], v[3]}, {v[4], v[5]}, v[6] == 1};
      });
}

Value steps(std::vector<Step>& target) {
  return json::table<Step, 4>(
      target, "[kind, index, after, after]", {Column{0, 1, {}}, kCount, kStep, kStep},
      [](const Step& s) {
        return std::array{static_cast<std::int32_t>(s.kind), s.index, s.after[0], s.after[1]};
      },
      [](Row v) {
        return Step{static_cast<StepKind>(v[0]), v[1], {v[2], v[3]}};
      });
}

Value rank(RankPlan& r) {
  return json::object([&r] {
    return Fields{{"q", space(r.q)},
                  {"k", space(r.k)},
                  {"slices", slice_rows(r.slices)},
                  {"attends", attends(r.attends)},
                  {"forward", steps(r.forward)},
                  {"backward", steps(r.backward)}};
  });
}

Value ranks(std::vector<RankPlan>& target) {
  Value value{.allowed = "an array of ranks"};
  value.element = [&target](std::size_t i) {
    if (i == target.size()) target.emplace_back();
    return rank(target[i]);
  };
  value.size = [&target] { return target.size(); };
  value.separator = ",\n";
  return value;
}

Value transfers(std::vector<Transfer>& target) {
  Value value = json::table<Transfer, 7>(
      target, "[src, dst, src row, dst segment, space, dst row, rows]",
      {kRows, kRows, kRows, Column{0, kMaxDegree, {}}, Column{0, 1, {}}, kRows, kRows},
      [](const Transfer& t) {
        return std::array<std::int32_t, 7>{
            t.src,     t.dst,     t.src_row, t.dst_segment, static_cast<std::int32_t>(t.space),
            t.dst_row, t.num_rows};
      },
      [](Row v) {
        return Transfer{.src = v[0],
                        .dst = v[1],
                        .src_row = v[2],
                        .dst_segment = static_cast<std::int16_t>(v[3]),
                        .space = static_cast<Space>(v[4]),
                        .dst_row = v[5],
                        .num_rows = v[6]};
      });
  value.separator = ",\n";
  return value;
}

Value report(Plan& p) {
  return json::object([&p] {
    PlanReport& r = p.report;
    return Fields{{"rank_area", json::integers64(r.rank_area)},
                  {"rank_rows", json::integers64(r.rank_rows)},
                  {"remote_rows", json::integers64(r.remote_rows)},
                  {"rank_runs", json::integers64(r.rank_runs), !asks_for_runs(p.config)},
                  {"rank_memory", json::integers64(r.rank_memory)},
                  {"pair_bytes", json::integers64(r.pair_bytes)},
                  {"balance", json::number(r.balance)},
                  {"total_bytes", json::integer64(r.total_bytes)},
                  {"lower_bound_bytes", json::integer64(r.lower_bound_bytes)},
                  {"ring_bytes", json::integer64(r.ring_bytes)},
                  {"forward_seconds", json::number(r.forward_seconds)},
                  {"backward_seconds", json::number(r.backward_seconds)},
                  {"exposed_comm_seconds", json::number(r.exposed_comm_seconds)}};
  });
}

Value schema(Plan& p) {
  return json::object([&p] {
    return Fields{
        {"format", json::constant("magi plan")},
        {"version", json::version(kPlanVersion, "5; plan the mask again")},
        {"mask", mask(p.mask)},
        {"config", config(p.config)},
        {"placement_q", placement(p.placement_q)},
        {"placement_k", placement(p.placement_k)},
        {"num_head_shares", json::integer(p.num_head_shares, 1, kMaxHeads), p.num_head_shares == 1},
        {"stages_in_flight", json::integer(p.stages_in_flight, 0, kMaxDegree),
         p.stages_in_flight == 0},
        {"exchanges", exchanges(p.exchanges)},
        {"ranks", ranks(p.ranks)},
        {"transfers", transfers(p.transfers)},
        {"report", report(p)},
        {"digest", digest(p.digest)}};
  });
}

/// The digest covers what ranks do, not the figures about it, which are made anew. Counts must be
/// those of the text; predicted times depend on the processor in their last bits.
void take_report(Plan& plan) {
  const PlanReport made = planner::make_report(plan);
  const PlanReport& read = plan.report;
  const auto counts = [](const PlanReport& r) {
    return std::tie(r.rank_area, r.rank_rows, r.remote_rows, r.rank_memory, r.pair_bytes,
                    r.total_bytes, r.lower_bound_bytes, r.ring_bytes);
  };
  const bool are_runs_equal = read.rank_runs.empty() || read.rank_runs == made.rank_runs;
  if (counts(read) != counts(made) || !are_runs_equal) {
    throw invalid("plan JSON: report", "that of another plan", "the figures of its own tables");
  }
  plan.report = made;
}

}  // namespace

std::string plan_to_json(const Plan& plan) {
  // The schema binds variables for both ways; writing changes none.
  return json::write(schema(const_cast<Plan&>(plan))) + "\n";
}

Plan plan_tables_from_json(std::string_view text) {
  Plan plan;
  json::read(text, "plan JSON", schema(plan));
  return plan;
}

Plan plan_from_json(std::string_view text) {
  Plan plan = plan_tables_from_json(text);
  const std::vector<std::string> problems = check_structure(plan);
  if (!problems.empty()) {
    throw InvalidArgument("plan JSON: " + problems.front() +
                          "; allowed: the parts of one plan, which agree");
  }
  if (plan_digest(plan) != plan.digest) {
    throw invalid("plan JSON", "carrying the digest of another plan",
                  "the digest of its own tables");
  }
  take_report(plan);
  return plan;
}

}  // namespace magi
