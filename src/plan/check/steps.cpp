// SPDX-License-Identifier: Apache-2.0
#include "plan/check/steps.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

namespace magi::planner {
namespace {

bool is_containing(Range a, Range b) { return a.begin <= b.begin && b.end <= a.end; }

/// True if the ranges, in any order, cover [0, end) once.
bool is_tiling(std::vector<Range> ranges, std::int32_t end) {
  std::ranges::sort(ranges, {}, &Range::begin);
  std::int32_t next = 0;
  for (const Range& range : ranges) {
    if (range.begin != next) return false;
    next = range.end;
  }
  return next == end;
}

void check_stages(const Plan& plan, Problems& problems) {
  std::int32_t last = 0;
  for (const Exchange& exchange : plan.exchanges) {
    if (is_returning(exchange.role)) {
      const bool is_known = std::ranges::any_of(plan.exchanges, [&](const Exchange& other) {
        return !is_returning(other.role) && space_of(other.role) == space_of(exchange.role) &&
               other.segment == exchange.segment && other.heads == exchange.heads &&
               other.stage == exchange.stage;
      });
      if (is_known) continue;
    } else if (exchange.stage == last || exchange.stage == last + 1) {
      last = exchange.stage;
      continue;
    }
    problems.add("an exchange of segment ", exchange.segment, " is of stage ", exchange.stage,
                 ", which none before it leads to");
  }
}

/// Checks what stages that take turns in memory are: each one exchange, of keys that others own, as
/// gradients of own ones lie elsewhere.
void check_turns(const Plan& plan, Problems& problems) {
  if (plan.stages_in_flight == 0) return;
  std::int32_t last = -1;
  for (const Exchange& exchange : plan.exchanges) {
    if (space_of(exchange.role) != Space::Keys) {
      problems.add("queries travel where stages take turns in memory");
      return;
    }
    if (is_returning(exchange.role)) continue;
    if (exchange.stage == last) {
      problems.add("two exchanges of keys are stage ", last, ", which has memory for one");
    }
    last = exchange.stage;
  }
  const auto is_copy = [](const Transfer& t) { return t.src == t.dst; };
  if (std::ranges::any_of(plan.transfers, is_copy)) {
    problems.add("own keys are copied where stages take turns in memory");
  }
}

/// The steps of one pass of one rank, and the rules that hold between them.
class PassCheck {
 public:
  PassCheck(const Plan& plan, std::size_t rank, bool is_backward, Problems& problems)
      : plan_(plan),
        rank_(rank),
        own_(plan.ranks[rank]),
        is_backward_(is_backward),
        steps_(is_backward ? own_.backward : own_.forward),
        problems_(problems) {}

  void check() {
    check_lists();
    std::vector<std::vector<bool>> is_written(own_.q.segments.size());
    for (auto& heads : is_written) {
      heads.assign(static_cast<std::size_t>(plan_.config.num_heads_kv), false);
    }
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i].kind == StepKind::Exchange) {
        check_exchange(i);
        check_turn(i, exchange_of(steps_[i]));
      } else {
        check_sources(i);
        if (const Exchange* keys = source_of(attend_of(steps_[i]))) {
          check_gradients(i, {.role = Role::KeyGradients, .stage = keys->stage});
        }
        check_merging(i, is_written[static_cast<std::size_t>(attend_of(steps_[i]).q_segment)]);
      }
    }
    for (std::size_t s = 0; s < is_written.size(); ++s) {
      const bool is_whole = std::ranges::find(is_written[s], false) == is_written[s].end();
      if (!is_whole && own_.q.segments[s].num_rows > 0) {
        add("no attention call writes some heads of query segment ", s);
      }
    }
  }

 private:
  template <typename... Parts>
  void add(const Parts&... parts) {
    problems_.add("rank ", rank_, ", ", pass_name(is_backward_), ": ", parts...);
  }
  template <typename... Parts>
  void add_at(std::size_t step, const Parts&... parts) {
    problems_.add("rank ", rank_, ", ", pass_name(is_backward_), " step ", step, ": ", parts...);
  }
  const Attend& attend_of(const Step& step) const {
    return own_.attends[static_cast<std::size_t>(step.index)];
  }
  const Exchange& exchange_of(const Step& step) const {
    return plan_.exchanges[static_cast<std::size_t>(step.index)];
  }

  /// The exchanges of the pass in order, every attention call once.
  void check_lists() {
    std::vector<std::int32_t> expected;
    for (std::size_t e = 0; e < plan_.exchanges.size(); ++e) {
      const Role role = plan_.exchanges[e].role;
      const bool is_in_pass = !is_returning(role) || (role == Role::Results) != is_backward_;
      if (is_in_pass) expected.push_back(static_cast<std::int32_t>(e));
    }
    std::vector<std::int32_t> exchanges;
    std::vector<std::int32_t> num_runs(own_.attends.size(), 0);
    for (const Step& step : steps_) {
      if (step.kind == StepKind::Exchange) {
        exchanges.push_back(step.index);
      } else {
        ++num_runs[static_cast<std::size_t>(step.index)];
      }
    }
    if (exchanges != expected) {
      add("the exchanges started are not those of the pass in their order");
    }
    for (std::size_t i = 0; i < num_runs.size(); ++i) {
      if (num_runs[i] != 1) add("attend ", i, " runs ", num_runs[i], " times");
    }
  }

  /// An attention call waits for the exchanges that bring its keys and queries.
  void check_sources(std::size_t i) {
    const Attend& attend = attend_of(steps_[i]);
    for (const Space space : {Space::Keys, Space::Queries}) {
      const std::int32_t segment = segment_of(attend, space);
      if (segment == 0) continue;
      const bool is_awaited = std::ranges::any_of(steps_[i].after, [&](std::int32_t before) {
        if (before < 0 || steps_[static_cast<std::size_t>(before)].kind != StepKind::Exchange) {
          return false;
        }
        const Exchange& exchange = exchange_of(steps_[static_cast<std::size_t>(before)]);
        return !is_returning(exchange.role) && space_of(exchange.role) == space &&
               exchange.segment == segment && is_containing(exchange.heads, attend.heads);
      });
      if (!is_awaited) {
        add_at(i, "attend ", steps_[i].index, " does not wait for ", name_of(space), " segment ",
               segment);
      }
    }
  }

  /// A returning exchange waits for the last attention call that writes what it sends or adds to;
  /// attends run one after the other, so waiting for a later one will do.
  void check_exchange(std::size_t i) {
    const Exchange& exchange = exchange_of(steps_[i]);
    if (!is_returning(exchange.role)) return;
    std::int32_t last_awaited = -1;
    for (const std::int32_t before : steps_[i].after) {
      const bool is_attend =
          before >= 0 && steps_[static_cast<std::size_t>(before)].kind == StepKind::Attend;
      if (is_attend) last_awaited = std::max(last_awaited, before);
    }
    for (std::size_t j = 0; j < steps_.size(); ++j) {
      if (steps_[j].kind != StepKind::Attend) continue;
      const Attend& attend = attend_of(steps_[j]);
      const std::int32_t segment = segment_of(attend, space_of(exchange.role));
      if (segment != 0 && segment != exchange.segment) continue;
      if (!overlaps(attend.heads, exchange.heads)) continue;
      if (static_cast<std::int32_t>(j) > last_awaited) {
        add_at(i, "exchange ", steps_[i].index, " does not wait for attend ", steps_[j].index);
        return;
      }
    }
  }

  /// The exchange that brings the keys of an attention call, in a plan of stages that take turns;
  /// null: they are the rank's own.
  const Exchange* source_of(const Attend& attend) const {
    const auto found = std::ranges::find_if(plan_.exchanges, [&](const Exchange& exchange) {
      return exchange.role == Role::KeysValues && exchange.segment == attend.k_segment &&
             is_containing(exchange.heads, attend.heads);
    });
    return found == plan_.exchanges.end() ? nullptr : &*found;
  }

  /// The step of the exchange whose memory an exchange takes; -1: there is none.
  std::int32_t previous_turn(const Exchange& exchange) const {
    for (std::size_t j = 0; j < steps_.size() && plan_.stages_in_flight > 0; ++j) {
      if (steps_[j].kind != StepKind::Exchange) continue;
      const Exchange& other = exchange_of(steps_[j]);
      if (other.role == exchange.role && other.stage == exchange.stage - plan_.stages_in_flight) {
        return static_cast<std::int32_t>(j);
      }
    }
    return -1;
  }
  bool awaits(std::size_t i, std::int32_t step) const {
    return std::ranges::find(steps_[i].after, step) != steps_[i].after.end();
  }

  /// Partial gradients are written once those before them have returned.
  void check_gradients(std::size_t i, const Exchange& exchange) {
    const std::int32_t previous = previous_turn(exchange);
    if (previous < 0 || awaits(i, previous)) return;
    add_at(i, "does not wait for step ", previous, ", whose partial gradients it overwrites");
  }

  /// Keys come once those before them have been read, or where nothing reads them have come.
  void check_turn(std::size_t i, const Exchange& exchange) {
    if (is_returning(exchange.role)) return check_gradients(i, exchange);
    const std::int32_t previous = previous_turn(exchange);
    if (previous < 0) return;
    const Exchange& before = exchange_of(steps_[static_cast<std::size_t>(previous)]);
    std::int32_t last_read = -1;
    for (std::size_t j = 0; j < steps_.size(); ++j) {
      if (steps_[j].kind != StepKind::Attend) continue;
      const Exchange* keys = source_of(attend_of(steps_[j]));
      if (keys != nullptr && *keys == before) last_read = static_cast<std::int32_t>(j);
    }
    const bool is_behind = std::ranges::any_of(steps_[i].after, [&](std::int32_t step) {
      return step >= last_read && step >= 0 &&
             steps_[static_cast<std::size_t>(step)].kind == StepKind::Attend;
    });
    if (last_read < 0 ? awaits(i, previous) : is_behind) return;
    add_at(i, "does not wait for step ", last_read < 0 ? previous : last_read,
           ", whose keys it overwrites");
  }

  void check_merging(std::size_t i, std::vector<bool>& is_written) {
    const Attend& attend = attend_of(steps_[i]);
    for (std::int32_t head = attend.heads.begin; head < attend.heads.end; ++head) {
      if (is_written[static_cast<std::size_t>(head)] != attend.is_merging) {
        add_at(i, "attend ", steps_[i].index, attend.is_merging ? " merges into" : " overwrites",
               " head ", head, " of query segment ", attend.q_segment);
        return;
      }
      is_written[static_cast<std::size_t>(head)] = true;
    }
  }

  const Plan& plan_;
  std::size_t rank_;
  const RankPlan& own_;
  bool is_backward_;
  const std::vector<Step>& steps_;
  Problems& problems_;
};

}  // namespace

void check_exchange_heads(const Plan& plan, Problems& problems) {
  std::array<std::vector<bool>, 2> is_filled;
  for (const Space space : {Space::Keys, Space::Queries}) {
    is_filled[static_cast<std::size_t>(space)].resize(
        space_of(plan.ranks[0], space).segments.size());
  }
  for (const Transfer& t : plan.transfers) {
    is_filled[static_cast<std::size_t>(t.space)][static_cast<std::size_t>(t.dst_segment)] = true;
  }
  std::map<std::pair<Role, std::int32_t>, std::vector<Range>> heads;
  for (std::int32_t i = 0; i < kNumRoles; ++i) {
    const auto role = static_cast<Role>(i);
    const auto& segments = is_filled[static_cast<std::size_t>(space_of(role))];
    for (std::size_t s = 0; s < segments.size(); ++s) {
      if (segments[s]) heads[{role, static_cast<std::int32_t>(s)}];
    }
  }
  for (const Exchange& exchange : plan.exchanges) {
    heads[{exchange.role, exchange.segment}].push_back(exchange.heads);
  }
  for (auto& [key, ranges] : heads) {
    const auto [role, segment] = key;
    if (is_filled[static_cast<std::size_t>(space_of(role))][static_cast<std::size_t>(segment)]) {
      if (is_tiling(ranges, plan.config.num_heads_kv)) continue;
      problems.add("the exchanges of role ", static_cast<std::int32_t>(role), " of segment ",
                   segment, " do not carry each head once");
    } else {
      problems.add("no rank receives segment ", segment, " of an exchange of role ",
                   static_cast<std::int32_t>(role));
    }
  }
  check_stages(plan, problems);
  check_turns(plan, problems);
}

void check_attend_slices(const Plan& plan, std::size_t rank, Problems& problems) {
  const RankPlan& own = plan.ranks[rank];
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<const Attend*>> readers;
  for (const Attend& attend : own.attends) {
    if (!attend.slices.empty()) {
      readers[{attend.slices.begin, attend.slices.end}].push_back(&attend);
    }
  }
  std::int32_t num_read = 0;
  for (const auto& [slices, attends] : readers) {
    if (slices.first < num_read)
      problems.add("rank ", rank, ": attends share slice ", slices.first);
    num_read = slices.second;
    std::vector<Range> heads;
    for (const Attend* attend : attends) {
      heads.push_back(attend->heads);
      if (attend->q_segment != attends.front()->q_segment ||
          attend->k_segment != attends.front()->k_segment) {
        problems.add("rank ", rank, ": slice ", slices.first, " is read in several segments");
      }
    }
    if (!is_tiling(heads, plan.config.num_heads_kv)) {
      problems.add("rank ", rank, ": the attention calls on slice ", slices.first,
                   " do not have each head once");
    }
    for (std::int32_t s = slices.first + 1; s < slices.second; ++s) {
      const BandSlice& a = own.slices[static_cast<std::size_t>(s) - 1];
      const BandSlice& b = own.slices[static_cast<std::size_t>(s)];
      if (a.q0 > b.q0 || (a.q0 == b.q0 && a.k0 > b.k0)) {
        problems.add("rank ", rank, ": slices ", s - 1, " and ", s, " are out of order");
        return;
      }
    }
  }
}

void check_passes(const Plan& plan, std::size_t rank, Problems& problems) {
  for (const bool is_backward : {false, true}) PassCheck(plan, rank, is_backward, problems).check();
}

}  // namespace magi::planner
