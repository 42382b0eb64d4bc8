// SPDX-License-Identifier: Apache-2.0
#include "plan/check_hops.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace magi::planner {
namespace {

/// Rows of one owner that ranks of a node have by now, and the rank of the node that got them.
class RowsInNode {
 public:
  /// Gives rows [begin, end) to `reader`: tell(holder, rows) for each run that a rank of the node
  /// has, with -1 for what comes from the owner.
  template <typename Tell>
  void give(std::int64_t begin, std::int64_t end, std::int32_t reader, Tell tell) {
    auto run = runs_.upper_bound(begin);
    if (run != runs_.begin() && std::prev(run)->second.end > begin) --run;
    std::vector<std::pair<std::int64_t, std::int64_t>> missing;
    for (std::int64_t at = begin; at < end;) {
      if (run == runs_.end() || run->first >= end) {
        missing.emplace_back(at, end);
        break;
      }
      if (run->first > at) missing.emplace_back(at, run->first);
      const std::int64_t last = std::min(end, run->second.end);
      tell(run->second.holder, last - std::max(at, run->first));
      at = last;
      ++run;
    }
    for (const auto& [first, last] : missing) {
      tell(-1, last - first);
      runs_[first] = {last, reader};
    }
  }

 private:
  struct Run {
    std::int64_t end = 0;
    std::int32_t holder = 0;
  };
  std::map<std::int64_t, Run> runs_;  // by first row
};

/// Readers of a node take turns, the one at the owner's place first, then those behind it; who
/// finds that another has a row gets it from there.
void add_by_node(std::vector<const Transfer*> crossing, std::int32_t node,
                 std::vector<SentRows>& sent) {
  const auto turn = [node](const Transfer* t) {
    const std::int32_t places = t->dst % node - t->src % node;
    return std::tuple(t->space, t->dst_segment, t->src, t->dst / node,
                      places < 0 ? places + node : places, t->src_row);
  };
  std::ranges::sort(crossing, {}, turn);
  RowsInNode rows;
  const Transfer* last = nullptr;
  for (const Transfer* t : crossing) {
    const auto same = [node](const Transfer* a) {
      return std::tuple(a->space, a->dst_segment, a->src, a->dst / node);
    };
    if (last == nullptr || same(last) != same(t)) rows = {};
    last = t;
    rows.give(t->src_row, std::int64_t{t->src_row} + t->num_rows, t->dst,
              [&](std::int32_t holder, std::int64_t count) {
                sent.push_back({.space = t->space,
                                .segment = t->dst_segment,
                                .is_onward = holder >= 0,
                                .from = holder < 0 ? t->src : holder,
                                .to = t->dst,
                                .num_rows = count});
              });
  }
}

}  // namespace

std::vector<SentRows> sent_rows(const Plan& plan) {
  std::set<std::pair<Space, std::int32_t>> by_node;
  for (const Exchange& exchange : plan.exchanges) {
    if (exchange.hop == 1) by_node.emplace(space_of(exchange.role), exchange.segment);
  }
  const std::int32_t node = std::max(1, plan.config.devices_per_node);
  std::vector<SentRows> sent;
  std::vector<const Transfer*> crossing;
  for (const Transfer& t : plan.transfers) {
    if (t.src == t.dst) continue;
    const bool is_by_node =
        t.src / node != t.dst / node && by_node.contains({t.space, std::int32_t{t.dst_segment}});
    if (is_by_node) {
      crossing.push_back(&t);
    } else {
      sent.push_back({.space = t.space,
                      .segment = t.dst_segment,
                      .from = t.src,
                      .to = t.dst,
                      .num_rows = t.num_rows});
    }
  }
  add_by_node(std::move(crossing), node, sent);
  return sent;
}

}  // namespace magi::planner
