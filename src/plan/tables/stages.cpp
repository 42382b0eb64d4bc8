// SPDX-License-Identifier: Apache-2.0
#include "plan/tables/stages.hpp"

#include <algorithm>

namespace magi::planner {
namespace {

/// Heads or Rows: resolves Auto.
StageMode resolve_mode(const PlanConfig& config) {
  if (config.stage_mode != StageMode::Auto) return config.stage_mode;
  return config.num_heads_kv > 1 ? StageMode::Heads : StageMode::Rows;
}

}  // namespace

std::int32_t useful_stages(const PlanConfig& config, std::int32_t degree,
                           std::int32_t remote_rows) {
  if (remote_rows == 0) return 0;
  if (resolve_mode(config) == StageMode::Heads) return std::min(degree, config.num_heads_kv);
  return std::clamp(remote_rows / config.min_stage_rows, 1, degree);
}

bool is_by_heads(const PlanConfig& config) { return resolve_mode(config) == StageMode::Heads; }

StageShape shape_stages(const PlanConfig& config, std::int32_t degree,
                        const std::vector<std::int32_t>& remote_rows) {
  const std::int32_t most = *std::max_element(remote_rows.begin(), remote_rows.end());
  return {.mode = resolve_mode(config),
          .num_exchanges = useful_stages(config, std::max(degree, 1), most),
          .min_stage_rows = config.min_stage_rows,
          .is_gathering = degree == 0};
}

bool allows_stages(const PlanConfig& config, StageMode mode) {
  if (mode == StageMode::Heads && config.num_heads_kv == 1) return false;
  return config.stage_mode == StageMode::Auto || config.stage_mode == mode;
}

Range share_of(std::int32_t count, std::int32_t num_parts, std::int32_t part) {
  const auto bound = [&](std::int32_t i) {
    return static_cast<std::int32_t>(std::int64_t{count} * i / num_parts);
  };
  return {bound(part), bound(part + 1)};
}

std::vector<Exchange> make_exchanges(const StageShape& shape, const PlanConfig& config) {
  const std::int32_t num_head_parts =
      shape.mode == StageMode::Heads ? shape.num_exchanges : shape.num_head_parts;
  const std::int32_t first_stage = shape.is_gathering ? 0 : 1;
  std::vector<Exchange> exchanges;
  exchanges.reserve(2 * static_cast<std::size_t>(shape.num_exchanges));
  const auto add = [&](Role role, std::int32_t i) {
    if (i < 0 || i >= shape.num_exchanges) return;
    exchanges.push_back({.role = role,
                         .segment = i / num_head_parts + 1,
                         .heads = share_of(config.num_heads_kv, num_head_parts, i % num_head_parts),
                         .stage = first_stage + i});
  };
  const std::int32_t lead =
      shape.stages_in_flight > 0 ? shape.stages_in_flight : shape.num_exchanges;
  for (std::int32_t i = 0; i < shape.num_exchanges + lead; ++i) {
    add(Role::KeysValues, i);
    add(Role::KeyGradients, i - lead);
  }
  return exchanges;
}

std::vector<Attend> make_attends(const StageShape& shape, const std::vector<Exchange>& exchanges,
                                 const PlanConfig& config,
                                 const std::vector<std::int32_t>& segment_begin) {
  const auto slices_of = [&](std::int32_t segment) {
    const auto s = static_cast<std::size_t>(segment);
    return Range{segment_begin[s], segment_begin[s + 1]};
  };
  std::vector<Attend> attends;
  attends.reserve(1 + static_cast<std::size_t>(shape.num_exchanges));
  // A rank that gathers nothing reads its own rows in place.
  const bool is_gathered = shape.is_gathering && shape.num_exchanges > 0 && !slices_of(1).empty();
  const std::int32_t first = is_gathered ? 1 : 0;
  attends.push_back(
      {.k_segment = first, .heads = {0, config.num_heads_kv}, .slices = slices_of(first)});
  if (shape.is_gathering) return attends;
  for (const Exchange& exchange : exchanges) {
    const Range slices = slices_of(exchange.segment);
    if (exchange.role != Role::KeysValues || slices.empty()) continue;
    attends.push_back({.k_segment = exchange.segment,
                       .heads = exchange.heads,
                       .slices = slices,
                       .is_merging = true});
  }
  return attends;
}

}  // namespace magi::planner
