// SPDX-License-Identifier: Apache-2.0
#include "plan/cost/sum_bytes.hpp"

#include <algorithm>
#include <array>

#include "plan/value/spaces.hpp"

namespace magi::planner {
namespace {

/// Counts one pass of one rank.
class RankSums {
 public:
  RankSums(const Plan& plan, std::int32_t rank, const PlanLoads& loads, bool is_backward)
      : plan_(plan),
        own_(plan.ranks[static_cast<std::size_t>(rank)]),
        rank_(rank),
        loads_(loads),
        is_backward_(is_backward),
        sum_(sum_element_bytes(plan.config)),
        is_narrow_(plan.config.element_bytes < sum_) {}

  SumBytes count(const std::vector<std::int64_t>& own_copies) const {
    SumBytes bytes;
    for (std::size_t a = 0; a < own_.attends.size(); ++a) bytes.attends.push_back(of_attend(a));
    for (std::size_t e = 0; e < plan_.exchanges.size(); ++e) {
      bytes.exchanges.push_back(of_exchange(plan_.exchanges[e], own_copies[e]));
    }
    return bytes;
  }

 private:
  /// Elements of a query row in the sum of this pass, out or dq, for some kv heads.
  std::int64_t query_elements(Range heads) const {
    const PlanConfig& config = plan_.config;
    return std::int64_t{heads.size()} * (config.num_heads_q / config.num_heads_kv) *
           (is_backward_ ? config.head_dim_qk : config.head_dim_v);
  }
  std::int64_t key_elements(Range heads) const {
    return std::int64_t{heads.size()} * (plan_.config.head_dim_qk + plan_.config.head_dim_v);
  }

  /// The rows of an attention call's slices, from the first to the last.
  std::int64_t seen_rows(const Attend& attend, Space space) const {
    std::int32_t begin = kMaxRows, end = 0;
    for (std::int32_t s = attend.slices.begin; s < attend.slices.end; ++s) {
      const BandSlice& slice = own_.slices[static_cast<std::size_t>(s)];
      begin = std::min(begin, space == Space::Queries ? slice.q0 : slice.k0);
      end = std::max(end, space == Space::Queries ? slice.q1 : slice.k1);
    }
    return std::max(end - begin, 0);
  }

  std::int64_t of_attend(std::size_t index) const {
    const Attend& attend = own_.attends[index];
    const bool is_own = attend.q_segment == 0;
    std::int64_t bytes = 0;
    if (attend.is_merging) {
      bytes += 2 * sum_ * seen_rows(attend, Space::Queries) * query_elements(attend.heads);
    } else if (is_narrow_ && !loads_.whole().of(Space::Queries) &&
               (!is_own || has_summed_results())) {
      // Written wider, and own ones rounded in the end.
      const std::int64_t element = is_own ? 2 * sum_ : sum_ - plan_.config.element_bytes;
      bytes += element * rows_of(own_.q, attend.q_segment) * query_elements(attend.heads);
    }
    return is_backward_ ? bytes + of_keys(index) : bytes;
  }

  /// dK and dV of a segment: the first attention call writes them, later ones add.
  std::int64_t of_keys(std::size_t index) const {
    const Attend& attend = own_.attends[index];
    if (loads_.whole().of(Space::Keys)) return 0;
    const auto first = own_.attends.begin();
    const bool is_adding =
        std::any_of(first, first + static_cast<std::ptrdiff_t>(index), [&](const Attend& earlier) {
          return earlier.k_segment == attend.k_segment && overlaps(earlier.heads, attend.heads);
        });
    if (is_adding) return 2 * sum_ * seen_rows(attend, Space::Keys) * key_elements(attend.heads);
    if (attend.k_segment != 0 || !is_narrow_) return 0;
    return 2 * sum_ * rows_of(own_.k, 0) * key_elements(attend.heads);
  }

  std::int64_t of_exchange(const Exchange& exchange, std::int64_t own_copies) const {
    if (!is_returning(exchange.role) || loads_.whole().of(exchange.role)) {
      return 2 * own_copies * bytes_per_row(plan_.config, exchange, is_backward_);
    }
    // Each part that comes back is read, and so is what it is added to, which is written.
    const std::int64_t elements = space_of(exchange.role) == Space::Queries
                                      ? query_elements(exchange.heads)
                                      : key_elements(exchange.heads);
    return 3 * sum_ * (loads_.rows_in(rank_, exchange) + own_copies) * elements;
  }

  /// Whether own queries get results from more than one attention call or rank.
  bool has_summed_results() const {
    const auto writes = [](const Attend& attend) {
      return attend.q_segment == 0 && !attend.slices.empty();
    };
    if (std::ranges::count_if(own_.attends, writes) > 1) return true;
    return std::ranges::any_of(plan_.exchanges, [&](const Exchange& exchange) {
      return exchange.role == Role::Results && loads_.rows_in(rank_, exchange) > 0;
    });
  }

  static std::int64_t rows_of(const TokenSpace& space, std::int32_t segment) {
    return space.segments[static_cast<std::size_t>(segment)].num_rows;
  }

  const Plan& plan_;
  const RankPlan& own_;
  std::int32_t rank_;
  const PlanLoads& loads_;
  bool is_backward_;
  std::int64_t sum_;
  bool is_narrow_;
};

/// Rows that stay on their rank where exchanges fill its segments.
class OwnCopies {
 public:
  explicit OwnCopies(const Plan& plan) : segments_(plan.ranks.size()) {
    for (std::size_t r = 0; r < segments_.size(); ++r) {
      const RankPlan& rank = plan.ranks[r];
      segments_[r] = {std::vector<std::int64_t>(rank.k.segments.size(), 0),
                      std::vector<std::int64_t>(rank.q.segments.size(), 0)};
    }
    for (const Transfer& t : plan.transfers) {
      if (t.src == t.dst)
        at(segments_[static_cast<std::size_t>(t.dst)], t.space, t.dst_segment) += t.num_rows;
    }
  }

  /// The loads of each exchange of the plan.
  std::vector<std::int64_t> of_rank(const Plan& plan, std::size_t rank) {
    std::vector<std::int64_t> rows;
    rows.reserve(plan.exchanges.size());
    for (const Exchange& exchange : plan.exchanges) {
      rows.push_back(at(segments_[rank], space_of(exchange.role), exchange.segment));
    }
    return rows;
  }

 private:
  using BySpace = std::array<std::vector<std::int64_t>, 2>;
  static std::int64_t& at(BySpace& rows, Space space, std::int32_t segment) {
    return rows[static_cast<std::size_t>(space)][static_cast<std::size_t>(segment)];
  }

  std::vector<BySpace> segments_;
};

}  // namespace

bool is_single_attend(const Plan& plan) {
  return std::ranges::all_of(plan.ranks,
                             [](const RankPlan& rank) { return rank.attends.size() <= 1; });
}

std::int32_t sum_element_bytes(const PlanConfig& config) {
  constexpr std::int32_t kFloatBytes = 4;
  return std::max(config.element_bytes, kFloatBytes);
}

std::vector<SumBytes> sum_bytes(const Plan& plan, const PlanLoads& loads, bool is_backward) {
  std::vector<SumBytes> bytes(plan.ranks.size());
  if (is_single_attend(plan)) return bytes;
  OwnCopies copies(plan);
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    bytes[rank] = RankSums(plan, static_cast<std::int32_t>(rank), loads, is_backward)
                      .count(copies.of_rank(plan, rank));
  }
  return bytes;
}

std::int64_t flat_copy_bytes(const Plan& plan, bool is_backward) {
  if (plan.num_head_shares == 1) return 0;
  const PlanConfig& config = plan.config;
  const std::int64_t dims = config.head_dim_qk + config.head_dim_v;
  // q, out, k and v; in the backward their gradients too.
  const std::int64_t tensors = is_backward ? 2 : 1;
  std::int64_t most = 0;
  for (std::int32_t rank = 0; rank < config.num_ranks; ++rank) {
    const std::int64_t elements =
        std::int64_t{plan.placement_q.rows_of(rank)} * config.num_heads_q +
        std::int64_t{plan.placement_k.rows_of(rank)} * config.num_heads_kv;
    most = std::max(most, 2 * tensors * elements * dims * config.element_bytes);
  }
  return most;
}

}  // namespace magi::planner
