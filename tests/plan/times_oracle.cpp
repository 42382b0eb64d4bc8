// SPDX-License-Identifier: Apache-2.0
#include "plan/times_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

namespace magi::testing {
namespace {

bool is_back(Role role) {
  return role == Role::Results || role == Role::KeyGradients || role == Role::QueryGradients;
}
Space space_moved(Role role) {
  return role == Role::KeysValues || role == Role::KeyGradients ? Space::Keys : Space::Queries;
}

double nanoseconds(double amount, double rate) {
  return std::round(std::min(amount / rate * 1e9, 1125899906842624.0));
}

class Times {
 public:
  Times(const Plan& plan, const std::vector<SentRow>& sent)
      : plan_(plan),
        sent_(sent),
        is_whole_{{Space::Keys, returns_whole(plan, Space::Keys)},
                  {Space::Queries, returns_whole(plan, Space::Queries)}} {}

  OracleTimes judge() {
    double forward = 0.0, backward = 0.0, busiest = 0.0;
    for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(plan_.ranks.size()); ++rank) {
      run(rank, false);
      forward = std::max({forward, attends_end_, returns_end_});
      busiest = std::max(busiest, attending_);
      run(rank, true);
      backward = std::max({backward, attends_end_, exchanges_end_});
    }
    forward += flat_copies(1, 5);
    backward += flat_copies(2, 9);
    return {forward * 1e-9, backward * 1e-9, (forward - busiest) * 1e-9,
            6.0 * static_cast<double>(most_steps_) * 1e-9};
  }

 private:
  void run(std::int32_t rank, bool is_backward) {
    const RankPlan& own = plan_.ranks.at(static_cast<std::size_t>(rank));
    const std::vector<Step>& steps = is_backward ? own.backward : own.forward;
    most_steps_ = std::max(most_steps_, steps.size());
    rank_ = rank;
    is_backward_ = is_backward;
    attends_end_ = exchanges_end_ = returns_end_ = attending_ = 0.0;
    std::vector<double> ends;
    for (const Step& step : steps) {
      const double free = step.kind == StepKind::Attend ? attends_end_ : exchanges_end_;
      double begin = 0.0;
      for (const std::int32_t before : step.after) {
        if (before != -1) begin = std::max(begin, ends.at(static_cast<std::size_t>(before)));
      }
      const auto index = static_cast<std::size_t>(step.index);
      if (step.kind == StepKind::Attend) {
        const double took = attend(own, own.attends.at(index), is_backward) + around_attend(index);
        attending_ += took;
        if (overlaps() && !is_backward) begin -= took - last_part(own);
        ends.push_back(attends_end_ = std::max(begin, free) + took);
        continue;
      }
      const Exchange& exchange = plan_.exchanges.at(index);
      const double took = move(rank, exchange, is_backward) + around_exchange(exchange);
      if (overlaps() && step.after[0] != -1 &&
          steps.at(static_cast<std::size_t>(step.after[0])).kind == StepKind::Attend) {
        begin -= std::min(took, std::floor(attend(own, own.attends.at(0), is_backward) / 2));
      }
      ends.push_back(exchanges_end_ = std::max(begin, free) + took);
      if (is_back(exchange.role)) returns_end_ = std::max(returns_end_, exchanges_end_);
    }
  }

  /// Copies of the tensors of a call, or of these and their gradients, where heads are in shares.
  double flat_copies(int passes, int count) const {
    if (plan_.num_head_shares == 1) return 0.0;
    const PlanConfig& config = plan_.config;
    std::int64_t most = 0;
    for (std::int32_t rank = 0; rank < config.num_ranks; ++rank) {
      const std::int64_t q_and_out =
          std::int64_t{plan_.placement_q.rows_of(rank)} * config.num_heads_q;
      const std::int64_t k_and_v =
          std::int64_t{plan_.placement_k.rows_of(rank)} * config.num_heads_kv;
      most = std::max(most, q_and_out + k_and_v);
    }
    const std::int64_t row = config.head_dim_qk + config.head_dim_v;
    return memory(2 * passes * most * row * config.element_bytes) + launches(count);
  }

  bool is_single() const {
    return std::ranges::all_of(plan_.ranks, [](const RankPlan& r) { return r.attends.size() < 2; });
  }
  bool overlaps() const {
    const std::int32_t size = plan_.config.devices_per_node;
    return is_single() && (size == 0 || size >= plan_.config.num_ranks);
  }
  std::int64_t sum_size() const {
    return plan_.config.element_bytes < 4 ? 4 : plan_.config.element_bytes;
  }
  double launches(int count) const {
    return count * nanoseconds(plan_.config.cost.seconds_per_launch, 1.0);
  }
  double memory(std::int64_t bytes) const {
    return nanoseconds(static_cast<double>(bytes), plan_.config.cost.memory_bytes_per_second);
  }
  const RankPlan& me() const { return plan_.ranks.at(static_cast<std::size_t>(rank_)); }

  /// What is left once the last half of the keys of others has come.
  double last_part(const RankPlan& own) const {
    RankPlan others = own;
    for (BandSlice& slice : others.slices) {
      slice.k0 = std::min(std::max(slice.k0, own.k.segments.at(0).num_rows), slice.k1);
    }
    const double work = attend(others, others.attends.at(0), false);
    return work == 0.0 ? 0.0 : std::floor((work - launches(1)) / 2);
  }

  /// Rows of others in this rank's results, or in whatever comes back for a segment.
  std::int64_t rows_back(Space space, std::int32_t segment) const {
    return std::ranges::count_if(sent_, [&](const SentRow& row) {
      return row.space == space && row.segment == segment && row.from == rank_;
    });
  }
  std::int64_t rows_staying(Space space, std::int32_t segment) const {
    std::int64_t rows = 0;
    for (const Transfer& t : plan_.transfers) {
      const bool stays = t.src == rank_ && t.dst == rank_;
      if (stays && t.space == space && t.dst_segment == segment) rows += t.num_rows;
    }
    return rows;
  }
  /// Elements in the sums of one row and kv head.
  std::int64_t elements(Space space) const {
    const PlanConfig& config = plan_.config;
    if (space == Space::Keys) return config.head_dim_qk + config.head_dim_v;
    const std::int64_t group = config.num_heads_q / config.num_heads_kv;
    return group * (is_backward_ ? config.head_dim_qk : config.head_dim_v);
  }
  std::int64_t rows_seen(const Attend& call, Space space) const {
    std::int64_t low = 1 << 30, high = -1;
    for (std::int32_t s = call.slices.begin; s < call.slices.end; ++s) {
      const BandSlice& slice = me().slices.at(static_cast<std::size_t>(s));
      low = std::min<std::int64_t>(low, space == Space::Keys ? slice.k0 : slice.q0);
      high = std::max<std::int64_t>(high, space == Space::Keys ? slice.k1 : slice.q1);
    }
    return std::max<std::int64_t>(high - low, 0);
  }
  bool has_several_results() const {
    int writers = 0;
    for (const Attend& call : me().attends) {
      writers += call.q_segment == 0 && call.slices.begin < call.slices.end ? 1 : 0;
    }
    for (const Exchange& exchange : plan_.exchanges) {
      if (exchange.role == Role::Results && rows_back(Space::Queries, exchange.segment) > 0) {
        writers += 2;
      }
    }
    return writers > 1;
  }

  double around_attend(std::size_t index) const {
    if (is_single()) return 0.0;
    const RankPlan& own = me();
    const Attend& call = own.attends.at(index);
    const bool is_narrow = plan_.config.element_bytes < 4;
    const std::int64_t out = elements(Space::Queries) * call.heads.size();
    const std::int64_t all_rows =
        own.q.segments.at(static_cast<std::size_t>(call.q_segment)).num_rows;
    std::int64_t bytes = 0;
    if (call.is_merging) {
      bytes = 2 * sum_size() * out * rows_seen(call, Space::Queries);
    } else if (is_whole_.at(Space::Queries)) {
      bytes = 0;
    } else if (is_narrow && call.q_segment != 0) {
      bytes = (sum_size() - plan_.config.element_bytes) * out * all_rows;
    } else if (is_narrow && has_several_results()) {
      bytes = 2 * sum_size() * out * all_rows;
    }
    bool is_first_of_keys = true, is_first = true;
    for (std::size_t a = 0; a < index; ++a) {
      const Attend& before = own.attends.at(a);
      is_first = is_first && before.slices.begin >= before.slices.end;
      for (std::int32_t head = call.heads.begin; head < call.heads.end; ++head) {
        const bool has_head = before.heads.begin <= head && head < before.heads.end;
        if (has_head && before.k_segment == call.k_segment) is_first_of_keys = false;
      }
    }
    if (is_backward_ && !is_whole_.at(Space::Keys)) {
      const std::int64_t sums = 2 * sum_size() * elements(Space::Keys) * call.heads.size();
      if (!is_first_of_keys) {
        bytes += sums * rows_seen(call, Space::Keys);
      } else if (is_narrow && call.k_segment == 0) {
        bytes += sums * own.k.segments.at(0).num_rows;
      }
    }
    if (is_first || call.slices.begin >= call.slices.end) return memory(bytes);
    const double idle = std::floor(attend(own, call, is_backward_) / 3);
    return memory(bytes) + launches(is_backward_ ? 10 : 1) +
           std::min(idle, launches(is_backward_ ? 15 : 8));
  }

  double around_exchange(const Exchange& exchange) const {
    if (is_single()) return 0.0;
    const Space space = space_moved(exchange.role);
    const std::int64_t staying = rows_staying(space, exchange.segment);
    std::int64_t bytes = 2 * staying * row_bytes(exchange, is_backward_);
    if (is_back(exchange.role) && !is_whole_.at(space)) {
      bytes = 3 * sum_size() * (staying + rows_back(space, exchange.segment)) * elements(space) *
              exchange.heads.size();
    }
    return memory(bytes) + launches(2);
  }

  double attend(const RankPlan& own, const Attend& call, bool is_backward) const {
    double pairs = 0.0;
    for (std::int32_t s = call.slices.begin; s < call.slices.end; ++s) {
      const BandSlice& slice = own.slices.at(static_cast<std::size_t>(s));
      for (std::int32_t q = slice.q0; q < slice.q1; ++q) {
        for (std::int32_t k = slice.k0; k < slice.k1; ++k) {
          pairs += slice.d_min <= k - q && k - q <= slice.d_max ? 1.0 : 0.0;
        }
      }
    }
    if (pairs == 0.0) return 0.0;
    const PlanConfig& config = plan_.config;
    const int heads = call.heads.size() * (config.num_heads_q / config.num_heads_kv);
    // Products over head_dim_qk and over head_dim_v, of two flops for each pair.
    const int over_qk = is_backward ? 3 : 1;
    const int over_v = is_backward ? 2 : 1;
    const double flops =
        2.0 * pairs * heads * (over_qk * config.head_dim_qk + over_v * config.head_dim_v);
    return nanoseconds(flops, is_backward ? config.cost.backward_flops_per_second
                                          : config.cost.flops_per_second) +
           nanoseconds(config.cost.seconds_per_launch, 1.0);
  }

  std::int64_t row_bytes(const Exchange& exchange, bool is_backward) const {
    const PlanConfig& config = plan_.config;
    const std::int64_t q = config.num_heads_q / config.num_heads_kv;
    std::int64_t elements = config.head_dim_qk + config.head_dim_v;
    if (exchange.role == Role::Queries) {
      elements = q * config.head_dim_qk + (is_backward ? 2 * q * config.head_dim_v : 0);
    } else if (exchange.role == Role::Results) {
      elements = q * config.head_dim_v;
    } else if (exchange.role == Role::QueryGradients) {
      elements = q * config.head_dim_qk;
    }
    const bool is_sum = is_back(exchange.role) && !is_whole_.at(space_moved(exchange.role));
    return elements * exchange.heads.size() * (is_sum ? sum_size() : config.element_bytes);
  }

  /// Rows in, rows out and peers of each, over the links that `is_of` tells.
  template <typename IsOf>
  double leg(std::int32_t rank, const Exchange& exchange, bool is_backward, IsOf is_of, double rate,
             double delay) const {
    std::int64_t in = 0, out = 0;
    std::set<std::int32_t> sources, targets;
    for (const SentRow& row : sent_) {
      const bool is_filling =
          row.space == space_moved(exchange.role) && row.segment == exchange.segment;
      if (!is_filling || !is_of(row)) continue;
      if (row.to == rank) {
        ++in;
        sources.insert(row.from);
      }
      if (row.from == rank) {
        ++out;
        targets.insert(row.to);
      }
    }
    const auto bytes = static_cast<double>(std::max(in, out) * row_bytes(exchange, is_backward));
    return nanoseconds(bytes, rate) +
           nanoseconds(delay * static_cast<double>(std::max(sources.size(), targets.size())), 1.0);
  }

  double move(std::int32_t rank, const Exchange& exchange, bool is_backward) const {
    const CostModel& cost = plan_.config.cost;
    const std::int32_t size = plan_.config.devices_per_node;
    const auto is_near = [size](const SentRow& row) {
      return size < 1 || row.from / size == row.to / size;
    };
    const auto inside = [&](const SentRow& row) { return row.from == row.owner && is_near(row); };
    const auto network = [&](const SentRow& row) { return !is_near(row); };
    const auto onward = [&](const SentRow& row) { return row.from != row.owner; };
    return std::max(leg(rank, exchange, is_backward, inside, cost.bytes_per_second,
                        cost.seconds_per_transfer),
                    leg(rank, exchange, is_backward, network, cost.network_bytes_per_second,
                        cost.network_seconds_per_transfer)) +
           leg(rank, exchange, is_backward, onward, cost.bytes_per_second,
               cost.seconds_per_transfer);
  }

  const Plan& plan_;
  const std::vector<SentRow>& sent_;
  std::map<Space, bool> is_whole_;
  double attends_end_ = 0.0;
  double exchanges_end_ = 0.0;
  double returns_end_ = 0.0;
  double attending_ = 0.0;
  std::size_t most_steps_ = 0;
  std::int32_t rank_ = 0;
  bool is_backward_ = false;
};

}  // namespace

bool returns_whole(const Plan& plan, Space space) {
  if (plan.num_head_shares == 1) return false;
  for (const Exchange& exchange : plan.exchanges) {
    if (exchange.hop != 0) return false;
  }
  std::set<std::pair<std::int32_t, std::int32_t>> sent;  // owner and its row
  for (const Transfer& t : plan.transfers) {
    for (std::int32_t row = 0; row < t.num_rows && t.space == space; ++row) {
      if (!sent.insert({t.src, t.src_row + row}).second) return false;
    }
  }
  for (const RankPlan& rank : plan.ranks) {
    std::set<std::pair<std::int32_t, std::int32_t>> made;  // segment and head
    for (const Attend& call : rank.attends) {
      if (call.slices.begin >= call.slices.end) continue;
      const std::int32_t segment = space == Space::Keys ? call.k_segment : call.q_segment;
      if (segment == 0 || call.is_merging) return false;
      for (std::int32_t head = call.heads.begin; head < call.heads.end; ++head) {
        if (!made.insert({segment, head}).second) return false;
      }
    }
  }
  return true;
}

OracleTimes times_of(const Plan& plan, const std::vector<SentRow>& sent) {
  return Times(plan, sent).judge();
}

}  // namespace magi::testing
