// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "verify/case.hpp"

namespace magi::cli {
namespace {

/// Multiply-adds of the largest score matrices; keeps a case below about a second.
constexpr std::int64_t kMostWork = 100'000'000;

template <typename Value, std::size_t N>
Value pick(RandomStream& random, const std::array<Value, N>& values) {
  return values[static_cast<std::size_t>(random.between(0, static_cast<std::int32_t>(N) - 1))];
}

std::int32_t most_rows(RandomStream& random) {
  const std::int32_t draw = random.between(0, 99);
  return draw < 80 ? 96 : draw < 97 ? 400 : 2048;
}

PlacementConfig random_placement(RandomStream& random) {
  PlacementConfig config;
  config.algorithm =
      static_cast<PlacementAlgorithm>(random.between(0, kNumPlacementAlgorithms - 1));
  if (random.chance(50)) config.chunk_size = random.between(1, 64);
  config.min_chunks_per_rank = random.between(1, 8);
  config.uneven_shard = random.chance(30);
  if (random.chance(20)) config.token_tolerance = 0.25 * random.between(1, 4);
  config.seed = random();
  return config;
}

/// Bounds chunks: without padding the last chunk may be all that a rank would get: chunks must be
/// short enough that there is one for each rank.
void fit_chunks(PlacementConfig& config, std::int32_t rows, std::int32_t num_ranks) {
  if (!config.uneven_shard) return;
  config.chunk_size = std::min(config.chunk_size.value_or(64), rows / num_ranks);
}

PlanConfig random_config(RandomStream& random, std::int32_t num_ranks) {
  PlanConfig config{.num_ranks = num_ranks};
  config.num_heads_kv = random.between(1, 3);
  config.num_heads_q = config.num_heads_kv * random.between(1, 3);
  config.head_dim_qk = pick<std::int32_t, 6>(random, {1, 4, 8, 13, 16, 32});
  config.head_dim_v =
      random.chance(70) ? config.head_dim_qk : pick<std::int32_t, 4>(random, {1, 5, 8, 24});
  config.placement = random_placement(random);
  config.overlap_degree = random.between(0, 4);
  if (random.chance(15)) config.overlap_degree.reset();
  config.stage_mode =
      pick<StageMode, 3>(random, {StageMode::Auto, StageMode::Heads, StageMode::Rows});
  config.min_stage_rows = random.between(1, 40);
  if (random.chance(40)) config.devices_per_node = random.between(1, num_ranks);
  return config;
}

/// Draws what travels besides keys.
void draw_work(RandomStream& random, PlanConfig& config) {
  if (random.chance(60)) return;
  config.work = pick<WorkMode, 3>(random, {WorkMode::Queries, WorkMode::Auto, WorkMode::Heads});
}

}  // namespace

VerifyCase random_case(RandomStream& random) {
  VerifyCase drawn;
  const std::int32_t num_ranks = random.between(1, 8);
  drawn.config = random_config(random, num_ranks);
  RandomMaskOptions options;
  options.min_rows = num_ranks;
  options.max_rows_q = most_rows(random);
  options.max_rows_k = random.chance(50) ? options.max_rows_q : most_rows(random);
  options.is_square = random.chance(70);
  drawn.mask = random_mask(random, options);
  const std::int64_t per_pair =
      std::int64_t{drawn.config.num_heads_q} * (drawn.config.head_dim_qk + drawn.config.head_dim_v);
  while (area(drawn.mask) * per_pair > kMostWork) drawn.mask.slices.pop_back();
  if (random.chance(20)) drawn.config.placement_k = random_placement(random);
  const std::int32_t fewest_rows = std::min(drawn.mask.rows_q, drawn.mask.rows_k);
  fit_chunks(drawn.config.placement, fewest_rows, num_ranks);
  if (drawn.config.placement_k) fit_chunks(*drawn.config.placement_k, fewest_rows, num_ranks);
  drawn.dtype = random.chance(50) ? DType::Float64 : DType::Float32;
  drawn.config.element_bytes = static_cast<std::int32_t>(dtype_bytes(drawn.dtype));
  if (random.chance(25)) drawn.params.softmax_scale = 0.125 * random.between(1, 8);
  if (random.chance(20)) drawn.params.softcap = 0.5 * random.between(1, 20);
  if (random.chance(30)) drawn.num_sinks = random.between(1, 3);
  drawn.params.sink_layout = random.chance(50) ? SinkLayout::SinkHead : SinkLayout::RowSinkHead;
  drawn.has_dlse = random.chance(30);
  drawn.data_seed = random();
  draw_work(random, drawn.config);
  return drawn;
}

}  // namespace magi::cli
