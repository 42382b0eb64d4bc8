// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "magi/batch.hpp"

namespace magi::testing {

inline std::vector<BatchSample> causal_samples(const std::vector<std::int32_t>& lengths) {
  std::vector<BatchSample> samples;
  for (const std::int32_t length : lengths) samples.push_back(causal_sample(length));
  return samples;
}

/// Lengths of all orders of magnitude, some 0.
inline std::vector<std::int32_t> random_lengths(RandomStream& random, std::int32_t longest) {
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(random.between(0, 60)));
  for (std::int32_t& length : lengths) {
    length = longest;
    while (length > 0 && random.chance(70)) length = random.between(0, length);
  }
  return lengths;
}

inline BatchConfig random_config(RandomStream& random) {
  BatchConfig config{.num_ranks = random.between(1, 40),
                     .rows_per_rank = random.between(300, 4300)};
  constexpr std::array kNodes{0, 1, 4, 8};
  config.devices_per_node = kNodes[static_cast<std::size_t>(random.between(0, 3))];
  config.chunk_size = random.chance(50) ? 0 : 32;
  if (random.chance(25)) config.cost.bytes_per_token *= 100.0;
  if (random.chance(25)) config.cost.flops_per_token = 0.0;
  return config;
}

}  // namespace magi::testing
