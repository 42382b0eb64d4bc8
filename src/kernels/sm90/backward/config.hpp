// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "magi/tensor.hpp"

namespace magi::sm90 {

/// The ways in which the two consumer warpgroups share a work tile.
enum class KernelForm : std::uint8_t {
  Narrow,  ///< q tiles of 64 rows; each warpgroup has 64 of 128 keys
  /// q tiles of 128 rows, where the head dim leaves registers for them: each warpgroup multiplies
  /// dQ of its half of the rows, not of the columns.
  Wide,
  LongQueries,  ///< Narrow, but dK and dV of 64 keys leave registers for one array of scores only
  /// dK and dV of 64 keys do not fit one warpgroup's registers: both warpgroups share 64 keys, each
  /// sums half of the columns, and a cluster of two CTAs has a k tile.
  SharedKeys,
  /// Each warpgroup walks its own q tiles, every second step, and sums dK and dV of all 64 keys:
  /// for masks of blocks so short that a tile of 128 keys would hold several, seen by different
  /// rows. Another kernel computes dQ.
  OwnRows,
  /// A kernel of kernels/mma: `mma_warps` warps, each with blocks of 32 rows or keys, copy and
  /// multiply. It reads tensors by address.
  Mma,
};

/// Everything that changes registers, shared memory or instructions of a backward instance.
struct BackwardConfig {
  DType type = DType::BFloat16;
  int dim_qk = 128;  ///< head dim of q and k as held on chip: the tensors' dim is at most this
  int dim_v = 128;   ///< likewise of v, out and dout
  /// Scores have a softcap. Kernels of head dims above 128 set this and ask the call at run time.
  bool has_softcap = false;
  /// Additions to dQ sums follow the order of the list: if the caller asks for equal bits from call
  /// to call, or if that costs less than clearing the sums.
  bool is_ordered = false;
  KernelForm form = KernelForm::Narrow;
  int q_stages = 4;
  int dout_stages = 2;
  int mma_warps = 4;

  int rows = form == KernelForm::Wide ? 128 : 64;  ///< of a q tile
  /// Keys of a k tile that a CTA holds.
  int keys = form == KernelForm::SharedKeys || form == KernelForm::OwnRows ? 64 : 128;

  static constexpr int consumers = 2;  ///< warpgroups
  constexpr bool is(KernelForm other) const { return form == other; }
  /// Registers per thread of the producer's warpgroup and of each consumer warpgroup. A producer
  /// that loads more needs more.
  constexpr int producer_registers() const { return is(KernelForm::SharedKeys) ? 32 : 24; }
  constexpr int consumer_registers(int warpgroup) const {
    return is(KernelForm::SharedKeys) && warpgroup == 1 ? 232 : 240;
  }

  /// Registers that a launch gives each thread. NOTE: raising more in sum waits for ever.
  static constexpr int launch_registers = 65536 / (128 * (consumers + 1)) / 8 * 8;
  constexpr bool has_registers() const {
    return consumer_registers(0) + consumer_registers(1) + producer_registers() <=
           (consumers + 1) * launch_registers;
  }

  /// Returns this config with another is_ordered.
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
  /// Each warpgroup writes half of the columns of dK and dV, of all keys.
  constexpr bool has_half_columns() const { return keys == 64; }
  /// CTAs that share a k tile, and its keys.
  constexpr int ctas() const { return is(KernelForm::SharedKeys) ? 2 : 1; }
  constexpr int tile_keys() const { return keys * ctas(); }
  /// Bytes of the other CTA's K columns, by which this CTA multiplies the other CTA's dS.
  constexpr int peer_k_bytes() const { return is(KernelForm::SharedKeys) ? k_bytes() / ctas() : 0; }
  /// Columns of dK (dV) that one warpgroup writes. It also sums these columns, or all of them with
  /// OwnRows.
  constexpr int dk_columns() const { return has_half_columns() ? dim_qk / consumers : dim_qk; }
  constexpr int dv_columns() const { return has_half_columns() ? dim_v / consumers : dim_v; }
  /// Warpgroups that read a step's queries.
  constexpr int step_readers() const { return is(KernelForm::OwnRows) ? 1 : consumers; }
  /// Buffers of dS: a warpgroup writes one while products for dQ read the other.
  static constexpr int score_stages = 2;
  /// All 16-bit score buffers; with SharedKeys also two of P and two of the other CTA's dS.
  constexpr int score_buffers() const {
    return score_stages + (is(KernelForm::SharedKeys) ? 4 : 0);
  }
  constexpr bool makes_dq() const { return !is(KernelForm::OwnRows); }
  /// Steps whose info is kept: more if one thread publishes steps and others load their rows.
  constexpr int step_stages() const { return is(KernelForm::OwnRows) ? 16 : 8; }
  /// Whether a warp of the kernel converts complete sums into dq, if additions are ordered. Its
  /// buffers take shared memory.
  constexpr bool has_converter() const {
    return is_ordered && dim_qk <= 128 && !is(KernelForm::Mma);
  }
  /// CTAs that run on one multiprocessor.
  constexpr int ctas_per_sm() const {
    return is(KernelForm::Mma) ? (dim_qk == 64 ? 12 : 8) / mma_warps : 1;
  }
  /// Columns of dQ that one warpgroup multiplies, of 64 rows.
  constexpr int dq_columns() const { return is(KernelForm::Wide) ? dim_qk : dim_qk / consumers; }
  /// Floats of one warpgroup's part of a dQ sum.
  constexpr int dq_floats() const { return 64 * dq_columns(); }
};

}  // namespace magi::sm90
