// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "magi/tensor.hpp"

namespace magi::sm90 {

/// Which calls a kernel serves. Features beyond them are not compiled in: instructions that are met
/// once per item, scattered over a large kernel, cost short items dearly.
enum class FeatureSet : std::int32_t {
  Plain,   ///< out in the type of q and nothing beside it
  AnyOut,  ///< out in float32 too, merged with an earlier one, and sinks
  General  ///< all that, softcap and max_logits
};

/// Everything that changes registers, shared memory or instructions of a forward instance.
struct ForwardConfig {
  DType type = DType::BFloat16;
  int dim_qk = 128;   ///< head dim of q and k as held on chip: the tensors' dim is at most this
  int dim_v = 128;    ///< likewise of v and out
  int keys = 128;     ///< keys per k tile
  int consumers = 2;  ///< warpgroups of 64 rows
  int kv_stages = 4;  ///< K and V tiles, alternating: even, K first
  /// Q of this item, of the one before (its out is staged there), of the next. With one, out goes
  /// to memory from registers.
  int q_stages = 3;
  bool has_pingpong = true;  ///< warpgroups take turns in issuing products
  int trimmed_keys = 64;     ///< keys of the short last tile of an item; 0: none is short
  FeatureSet features = FeatureSet::Plain;
  /// Warps of a kernel of kernels/mma, which reads tensors by address: all copy and multiply.
  int mma_warps = 0;

  constexpr bool is_general() const { return features == FeatureSet::General; }
  constexpr bool has_any_out() const { return features != FeatureSet::Plain; }
  constexpr int rows() const { return 64 * consumers; }
  constexpr int threads() const { return 128 * (consumers + 1); }
  constexpr int q_bytes() const { return rows() * dim_qk * 2; }
  constexpr int k_bytes() const { return keys * dim_qk * 2; }
  constexpr int v_bytes() const { return keys * dim_v * 2; }
  constexpr int out_bytes() const { return rows() * dim_v * 2; }
  /// Room for a Q tile and, later, its out.
  constexpr int q_stage_bytes() const {
    return stages_out() ? std::max(q_bytes(), out_bytes()) : q_bytes();
  }
  constexpr int kv_bytes() const { return kv_stages / 2 * (k_bytes() + v_bytes()); }
  /// The places where the K tile of an even stage and the V tile of an odd one begin.
  constexpr int k_offset(int stage) const { return stage * ((k_bytes() + v_bytes()) / 2); }
  constexpr int v_offset(int stage) const { return k_offset(stage) + (k_bytes() - v_bytes()) / 2; }
  constexpr bool stages_out() const { return q_stages > 1; }
  /// Q is loaded and handed back as a whole, or where the next Q waits for it, by warpgroup.
  constexpr int q_parts() const { return stages_out() ? 1 : consumers; }
  /// The buffers of this item and of the one before, which is written later.
  constexpr int place_stages() const { return std::max(q_stages, 2); }
  constexpr int producer_registers() const { return consumers <= 2 ? 40 : 32; }
  constexpr int consumer_registers() const {
    return consumers == 1 ? 216 : consumers == 2 ? 232 : 160;
  }
  /// CTAs that a multiprocessor has room for: two of one consumer take turns as two warpgroups do.
  constexpr int ctas_per_sm() const {
    return mma_warps > 0 ? 8 / mma_warps : consumers == 1 ? 2 : 1;
  }
};

}  // namespace magi::sm90
