// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sm90/arguments.hpp"
#include "kernels/sm90/backward/params.hpp"
#include "magi/tensor.hpp"

// Kernels that run before and after the backward's main kernel. They number rows in the order of
// tiles: row r of tile t of head group g is token t * tile_tokens + r / packed_heads, head g *
// packed_heads + r % packed_heads, and has index (g * tiles_per_group + t) * kTileRows + r.
namespace magi::sm90 {

/// Packed query rows of a tile here. A q tile of the main kernel has one such tile, or two.
inline constexpr int kTileRows = 64;

/// Replaces lse * log2(e) of rows that see no key and of rows past the end, so that exp2(s -
/// kNoKeys) is 0 for every s.
inline constexpr float kNoKeys = 1e30f;

/// A row whose lse in base 2 reaches this bound gets no gradient, as if it had no keys. An lse is
/// rounded, and tensor cores truncate the sums of scores; together this changes exponents by up to
/// 2^-20 of their size. Below the bound no weight exceeds 2; above it powers of 2 would overflow.
inline constexpr float kLargestLse = 0x1p20f;

/// The map of packed rows to tokens and heads.
struct PackedRows {
  std::int32_t rows_q = 0;
  std::int32_t heads_q = 0;
  std::int32_t packed_heads = 1;  ///< a power of two up to kTileRows
  std::int32_t tiles_per_group =
      0;  ///< tiles that hold rows_q, rounded up to q tiles of the main kernel

  std::int32_t tile_tokens() const { return kTileRows / packed_heads; }
  std::int64_t num_tiles() const {
    return std::int64_t{tiles_per_group} * (heads_q / packed_heads);
  }
};

/// The places where the main kernel writes gradients of keys. They are arguments of the preprocess
/// kernel, which copies them to `target`, so that a graph holds them.
struct StoredDestinations {
  static constexpr std::int32_t kMost = 24;
  KeyDestination values[kMost];
  std::int32_t count = 0;
  KeyDestination* target = nullptr;
};

struct PrepareParams {
  PackedRows packed;
  std::int32_t dim_v = 0;
  StridedRows out;
  StridedRows dout;
  StridedRows lse;
  StridedRows dlse;  ///< without data: zeros
  float exponent_scale = 1.0f;
  /// [tiles, kTileRows], negated: -lse * log2(e) / exponent_scale, with kNoKeys for rows without
  /// keys or whose lse reaches kLargestLse.
  float* lse_log2 = nullptr;
  /// [tiles, kTileRows], negated: dlse - sum of dout * out; 0 with an infinite lse.
  float* delta = nullptr;
  void* dout_copy = nullptr;  ///< null, or 16-bit [rows_q, heads_q, dim_v]: dout rounded
  float* sums = nullptr;      ///< [tiles, sums_per_tile], cleared
  std::int32_t sums_per_tile = 0;
  /// Components in each q tile of the main kernel, or null: tiles with at most one are not cleared.
  const std::int32_t* num_components = nullptr;
  std::int32_t tiles_per_q_tile = 1;  ///< tiles in a q tile of the main kernel
  /// Extra CTAs, after those of the tiles, that wait for the kernel that makes num_components and
  /// then clear all sums. 0: num_components is ready, and each tile's CTA clears its own.
  std::int32_t num_late_ctas = 0;
  bool is_beside = false;               ///< the kernel runs beside the one before it
  std::uint32_t* semaphores = nullptr;  ///< [num_semaphores], cleared, the item ticket with them
  std::int64_t num_semaphores = 0;
  StoredDestinations destinations;
};

/// Enqueues the preprocess kernel. `type` is that of 16-bit tensors. With is_beside, the kernel
/// before it pushes rows to peers or makes the list; else it waits for all earlier work.
void prepare_backward(const PrepareParams& params, DType type, cudaStream_t stream);

/// Arguments for gradients of sink logits from results of prepare_backward; laid out like the
/// logits.
struct SinkGradientParams {
  PackedRows packed;
  float exponent_scale = 1.0f;
  const float* lse_log2 = nullptr;
  const float* delta = nullptr;
  SinkRows sink;
  float* dsink = nullptr;
  std::int64_t row_stride = 0;  ///< row stride of dsink; 0 if all rows share the sinks
  std::int64_t sink_stride = 0;
  bool is_adding = false;
};

/// Enqueues dsink. Sums over rows have a fixed order: equal bits from call to call.
void enqueue_sink_gradient(const SinkGradientParams& params, cudaStream_t stream);

}  // namespace magi::sm90
