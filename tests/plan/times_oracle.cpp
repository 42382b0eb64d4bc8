// SPDX-License-Identifier: Apache-2.0
#include "plan/times_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

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
  Times(const Plan& plan, const std::vector<SentRow>& sent) : plan_(plan), sent_(sent) {}

  OracleTimes judge() {
    double forward = 0.0, backward = 0.0, busiest = 0.0;
    for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(plan_.ranks.size()); ++rank) {
      run(rank, false);
      forward = std::max({forward, attends_end_, returns_end_});
      busiest = std::max(busiest, attending_);
      run(rank, true);
      backward = std::max({backward, attends_end_, exchanges_end_});
    }
    return {forward * 1e-9, backward * 1e-9, (forward - busiest) * 1e-9,
            6.0 * static_cast<double>(most_steps_) * 1e-9};
  }

 private:
  void run(std::int32_t rank, bool is_backward) {
    const RankPlan& own = plan_.ranks.at(static_cast<std::size_t>(rank));
    const std::vector<Step>& steps = is_backward ? own.backward : own.forward;
    most_steps_ = std::max(most_steps_, steps.size());
    attends_end_ = exchanges_end_ = returns_end_ = attending_ = 0.0;
    std::vector<double> ends;
    for (const Step& step : steps) {
      double begin = step.kind == StepKind::Attend ? attends_end_ : exchanges_end_;
      for (const std::int32_t before : step.after) {
        if (before != -1) begin = std::max(begin, ends.at(static_cast<std::size_t>(before)));
      }
      const auto index = static_cast<std::size_t>(step.index);
      if (step.kind == StepKind::Attend) {
        const double took = attend(own, own.attends.at(index), is_backward);
        attending_ += took;
        ends.push_back(attends_end_ = begin + took);
        continue;
      }
      const Exchange& exchange = plan_.exchanges.at(index);
      ends.push_back(exchanges_end_ = begin + move(rank, exchange, is_backward));
      if (is_back(exchange.role)) returns_end_ = std::max(returns_end_, exchanges_end_);
    }
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
    return elements * exchange.heads.size() * config.element_bytes;
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
  double attends_end_ = 0.0;
  double exchanges_end_ = 0.0;
  double returns_end_ = 0.0;
  double attending_ = 0.0;
  std::size_t most_steps_ = 0;
};

}  // namespace

OracleTimes times_of(const Plan& plan, const std::vector<SentRow>& sent) {
  return Times(plan, sent).judge();
}

}  // namespace magi::testing
