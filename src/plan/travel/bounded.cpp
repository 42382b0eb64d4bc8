// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/bounded.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/math.hpp"
#include "plan/cost/report.hpp"
#include "plan/cost/timeline.hpp"
#include "plan/value/config.hpp"

namespace magi::planner {
namespace {

/// Numbers of runs of rows, and of sections of kv heads in which each of them comes.
struct Parts {
  std::int32_t rows = 1;
  std::int32_t heads = 1;

  std::int32_t stages() const { return rows * heads; }
  friend bool operator==(const Parts&, const Parts&) = default;
};

/// Whether stages of a rank that lacks `rows` rows keep the bound.
bool keeps_bound(const PlanConfig& config, std::int32_t rows, Parts parts) {
  const std::int64_t row_elements = config.head_dim_qk + config.head_dim_v;
  const std::int64_t row_bytes =  // of a head, with float32 gradients
      row_elements * (config.element_bytes + static_cast<std::int32_t>(sizeof(float)));
  const std::int64_t most_rows =
      std::int64_t{ceil_div(rows, parts.rows)} * ceil_div(config.num_heads_kv, parts.heads);
  return bytes_above_bound(config, kStagesInFlight * most_rows * row_bytes) == 0;
}

/// The parts to try: sections of heads, or where these do not keep the bound runs of rows whose
/// heads come in sections, which are merged seldom and cross between nodes seldom; rows alone where
/// heads may not be cut. Of these the fewest that keep the bound, or the most where none do, and
/// twice as many, which hide more.
std::vector<Parts> parts_of(const PlanConfig& config, std::int32_t rows) {
  constexpr std::int32_t kMostSections = 8;
  const bool has_heads = allows_stages(config, StageMode::Heads);
  const bool has_rows = allows_stages(config, StageMode::Rows);
  const std::optional<std::int32_t> degree = config.overlap_degree;
  std::vector<Parts> tried;
  // Tells whether the last ones keep the bound.
  const auto add = [&](Parts parts, std::int32_t Parts::*count, std::int32_t most) {
    if (degree) parts.*count = *degree;
    while (!degree && parts.*count < most && !keeps_bound(config, rows, parts)) ++(parts.*count);
    for (const std::int32_t times : {1, 2}) {
      Parts more = parts;
      more.*count = std::min(times * parts.*count, most);
      const bool is_known = !tried.empty() && more == tried.back();
      if (more.stages() <= kStagesInFlight || is_known || (times > 1 && degree)) continue;
      tried.push_back(more);
    }
    return !tried.empty() && keeps_bound(config, rows, tried.back());
  };
  const std::int32_t least = kStagesInFlight + 1;
  const std::int32_t most_heads = std::min(config.num_heads_kv, kMaxDegree);
  const std::int32_t most_rows = std::min(rows / config.min_stage_rows, kMaxDegree);
  if (has_heads && add({.heads = least}, &Parts::heads, most_heads)) return tried;
  if (!has_rows) return tried;
  const std::int32_t sections = has_heads && !degree ? std::min(most_heads, kMostSections) : 1;
  add({.rows = sections > 1 ? 2 : least, .heads = sections}, &Parts::rows,
      std::min(most_rows, kMaxDegree / sections));
  return tried;
}

StageShape shape_of(const PlanConfig& config, Parts parts) {
  const bool is_by_heads = parts.rows == 1;
  return {.mode = is_by_heads ? StageMode::Heads : StageMode::Rows,
          .num_exchanges = parts.stages(),
          .min_stage_rows = config.min_stage_rows,
          .stages_in_flight = kStagesInFlight,
          .num_head_parts = is_by_heads ? 1 : parts.heads};
}

}  // namespace

PlanLoads build_bounded(Plan& plan, PlanLoads loads, const BuildStages& build,
                        const std::vector<std::int32_t>& remote_rows) {
  if (bytes_above_bound(plan.config, exchange_memory(plan, loads)) == 0) return loads;
  const std::vector<Parts> tried = parts_of(plan.config, *std::ranges::max_element(remote_rows));
  using Rating = std::pair<std::int64_t, std::int64_t>;  // bytes above the bound, nanoseconds
  std::optional<Rating> best_rating;
  const Parts* best = nullptr;
  for (const Parts& parts : tried) {
    build(shape_of(plan.config, parts));
    loads = PlanLoads(plan);
    const PlanTimes times = predict_plan(plan, loads);
    const Rating rating(bytes_above_bound(plan.config, exchange_memory(plan, loads)),
                        times.forward_ns + times.backward_ns);
    if (best_rating && rating >= *best_rating) continue;
    best_rating = rating;
    best = &parts;
  }
  if (best == nullptr || best == &tried.back()) return loads;
  build(shape_of(plan.config, *best));
  return PlanLoads(plan);
}

}  // namespace magi::planner
