// SPDX-License-Identifier: Apache-2.0
#include "plan/waves.hpp"

#include <algorithm>

namespace magi::planner {

WaveMode resolve_wave_mode(const PlanConfig& config) {
  if (config.wave_mode != WaveMode::Auto) return config.wave_mode;
  return config.num_heads_kv > 1 ? WaveMode::Heads : WaveMode::Rows;
}

std::int32_t useful_waves(const PlanConfig& config, std::int32_t degree, std::int32_t remote_rows) {
  if (remote_rows == 0 || degree == 0) return 0;
  if (resolve_wave_mode(config) == WaveMode::Heads) return std::min(degree, config.num_heads_kv);
  return std::clamp(remote_rows / config.min_wave_rows, 1, degree);
}

WaveShape shape_waves(const PlanConfig& config, std::int32_t degree,
                      const std::vector<std::int32_t>& remote_rows) {
  const std::int32_t most = *std::max_element(remote_rows.begin(), remote_rows.end());
  return {.is_combined = degree == 0 && most > 0,
          .mode = resolve_wave_mode(config),
          .num_remote = useful_waves(config, degree, most),
          .min_wave_rows = config.min_wave_rows};
}

Range wave_rows(std::int32_t remote_rows, std::int32_t num_waves, std::int32_t wave) {
  const auto bound = [&](std::int32_t i) {
    return static_cast<std::int32_t>(std::int64_t{remote_rows} * i / num_waves);
  };
  return {bound(wave), bound(wave + 1)};
}

std::vector<Wave> make_waves(const WaveShape& shape, const PlanConfig& config,
                             const std::vector<std::int32_t>& segment_begin) {
  const Range all_heads{0, config.num_heads_kv};
  const auto slices_of = [&](std::int32_t segment) {
    const auto s = static_cast<std::size_t>(segment);
    return Range{segment_begin[s], segment_begin[s + 1]};
  };
  std::vector<Wave> waves;
  waves.reserve(static_cast<std::size_t>(shape.num_waves()));
  // With one combined buffer, a rank that receives nothing reads its own rows in place.
  const bool is_reading_buffer = shape.is_combined && !slices_of(1).empty();
  const std::int32_t first = is_reading_buffer ? 1 : 0;
  waves.push_back({first, all_heads, slices_of(first)});
  for (std::int32_t wave = 0; wave < shape.num_remote; ++wave) {
    if (shape.mode == WaveMode::Heads) {
      const Range heads = wave_rows(config.num_heads_kv, shape.num_remote, wave);
      waves.push_back({1, heads, slices_of(1)});
    } else {
      waves.push_back({wave + 1, all_heads, slices_of(wave + 1)});
    }
  }
  return waves;
}

}  // namespace magi::planner
