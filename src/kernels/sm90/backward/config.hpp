// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "magi/tensor.hpp"

namespace magi::sm90 {

/// Everything that changes registers, shared memory or instructions of a backward instance.
struct BackwardConfig {
  DType type = DType::BFloat16;
  int dim_qk = 128;  ///< head dim of q and k as held on chip: the tensors' dim is at most this
  int dim_v = 128;   ///< likewise of v, out and dout
  bool has_softcap = false;
  /// Sums of dQ are taken in the order of the list: where the caller asks for equal bits from call
  /// to call, and where that costs less than clearing the sums.
  bool is_ordered = false;
  /// Rows of a q tile: 64, or 128 where the head dim leaves registers for it. Then each warpgroup
  /// multiplies dQ of its half of the rows, not of the columns.
  int rows = 64;

  static constexpr int consumers = 2;  ///< warpgroups of 64 keys
  static constexpr int keys = 64 * consumers;
  static constexpr int q_stages = 4;
  static constexpr int dout_stages = 2;
  static constexpr int consumer_registers = 240;
  static constexpr int producer_registers = 24;

  /// Registers that a launch gives each thread. NOTE: raising more than that in sum waits for ever.
  static constexpr int launch_registers = 65536 / (128 * (consumers + 1)) / 8 * 8;
  static_assert(consumers * consumer_registers + producer_registers <=
                (consumers + 1) * launch_registers);

  /// The same config with sums of dQ in order or not.
  constexpr BackwardConfig ordered(bool is_so) const {
    BackwardConfig config = *this;
    config.is_ordered = is_so;
    return config;
  }
  constexpr int threads() const { return 128 * (consumers + 1); }
  constexpr int k_bytes() const { return keys * dim_qk * 2; }
  constexpr int v_bytes() const { return keys * dim_v * 2; }
  /// Room for V and, later, the item's dK and dV.
  constexpr int v_stage_bytes() const { return std::max(k_bytes(), v_bytes()); }
  constexpr int q_bytes() const { return rows * dim_qk * 2; }
  constexpr int dout_bytes() const { return rows * dim_v * 2; }
  constexpr int score_bytes() const { return rows * keys * 2; }
  constexpr bool has_wide_tiles() const { return rows == 128; }
  /// Columns of dQ that one warpgroup multiplies, of 64 rows.
  constexpr int dq_columns() const { return has_wide_tiles() ? dim_qk : dim_qk / consumers; }
  /// Floats of one warpgroup's part of a dQ sum.
  constexpr int dq_floats() const { return 64 * dq_columns(); }
};

}  // namespace magi::sm90
