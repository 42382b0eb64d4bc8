// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/schedule/host/backward_list.hpp"
#include "magi/mask.hpp"
#include "mask/random_mask.hpp"

// What lists of the backward are made for in tests.
namespace magi::test {

inline BackwardProblem problem_of(const Mask& mask, std::int32_t heads_q, std::int32_t heads_kv) {
  return {.rows_q = mask.rows_q,
          .rows_k = mask.rows_k,
          .heads_q = heads_q,
          .heads_kv = heads_kv,
          .num_ctas = 8};
}

/// Small tiles, so that small masks have many.
inline BackwardTileShape random_shape(RandomStream& random) {
  return {.rows = 16 << random.between(0, 3),
          .keys = 8 * random.between(1, 10),
          .overhead = random.between(0, 5)};
}

/// Of head dims up to 64.
inline constexpr BackwardTileShape kWideShape{.rows = 128, .overhead = 2, .split_cost = 1};

/// A window and rows without keys: the main kernel converts most dQ sums itself, the dQ convert
/// kernel some.
inline Mask converted_window() {
  return {1091, 1091, {{.q0 = 0, .q1 = 1051, .k0 = 0, .k1 = 1051, .d_min = -256, .d_max = 0}}};
}

}  // namespace magi::test
