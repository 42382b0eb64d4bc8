// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/tensor.hpp"

namespace magi::sm90 {

/// How a consumer warpgroup orders its two products and its softmax.
enum class Schedule : std::int32_t {
  Overlap,   ///< S of tile j and O += P V of tile j-1 in flight together; turns to issue products
  Rotation,  ///< one product at a time; turns in the exponentials, so that others multiply
  Free,      ///< as Overlap, without turns
};

/// Everything that changes registers, shared memory or instructions of a forward instance.
struct ForwardConfig {
  DType type = DType::BFloat16;
  int dim = 128;      ///< of q, k and v as held on chip: the tensors' dims are at most this
  int keys = 128;     ///< keys per k tile
  int consumers = 2;  ///< warpgroups of 64 rows
  int q_stages = 2;
  int kv_stages = 2;
  Schedule schedule = Schedule::Overlap;
  bool has_softcap = false;

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
