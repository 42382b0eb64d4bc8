// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/tensor.hpp"

namespace magi::sm90 {

/// Whether the consumer warpgroups take turns to issue the products S = Q K^T of one tile and
/// O += P V of the tile before it, so that one multiplies while the other exponentiates.
enum class Schedule : std::int32_t { Turns, Free };

/// Everything that changes registers, shared memory or instructions of a forward instance.
struct ForwardConfig {
  DType type = DType::BFloat16;
  int dim = 128;      ///< of q, k and v as held on chip: the tensors' dims are at most this
  int keys = 128;     ///< keys per k tile
  int consumers = 2;  ///< warpgroups of 64 rows
  int kv_stages = 5;  ///< K and V tiles, by turns
  Schedule schedule = Schedule::Turns;
  /// Serves softcap and max_logits too, at the price of instructions and registers.
  bool is_general = false;

  static constexpr int q_stages = 2;  ///< an item's first scores come before the last one's out

  constexpr int rows() const { return 64 * consumers; }
  constexpr int threads() const { return 128 * (consumers + 1); }
  constexpr int q_bytes() const { return rows() * dim * 2; }
  constexpr int kv_bytes() const { return keys * dim * 2; }
  constexpr int producer_registers() const { return consumers == 2 ? 40 : 32; }
  constexpr int consumer_registers() const { return consumers == 2 ? 232 : 160; }
};

/// Keys of the short last tile of an item.
inline constexpr int kTrimmedKeys = 64;

}  // namespace magi::sm90
