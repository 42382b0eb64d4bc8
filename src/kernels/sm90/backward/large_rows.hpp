// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/prepare.hpp"

namespace magi::sm90 {

/// Words that the kernel counts in, zero at its start.
inline constexpr int kLargeRowCounters = 3;

/// Gradients through rows whose lse is so large that one float32 holds it too coarsely: the kernels
/// before have left them out. All tensors but dq, dk, dv and dsink are read.
struct LargeRowParams {
  PackedRows packed;
  std::int32_t heads_kv = 1;
  std::int32_t dim_qk = 0;  ///< a multiple of 8 up to 256, like dim_v
  std::int32_t dim_v = 0;
  StridedRows q;  ///< like k, v and dout of a 16-bit type
  StridedRows k;
  StridedRows v;
  StridedRows dout;
  StridedRows lse;
  StridedRows dlse;                          ///< without data where there is none
  const std::uint8_t* tile_flags = nullptr;  ///< see PrepareParams
  /// [tiles, kTileRows]: of large rows the kernel leaves here what is to be added to their lse in
  /// base 2.
  float* lse_log2 = nullptr;
  /// As prepare_backward leaves it. Of large rows whose weight lies in this call as a whole the
  /// kernel leaves the exact one here.
  float* delta = nullptr;
  ScoreScale score;
  const KeyTile* tiles = nullptr;  ///< of at most 128 keys
  const KeyRecord* records = nullptr;
  std::int64_t num_records = 0;
  std::int32_t num_tiles = 0;
  const BackwardOutcome* outcome = nullptr;  ///< has both numbers of a list made on the device
  std::int32_t tiles_per_list = 0;           ///< see BackwardItems; then [kv heads] outcomes
  std::int32_t records_per_list = 0;
  bool is_adding_queries = false;  ///< dq is added to what is there
  StridedRows dq;
  KeyGradients key_gradients;  ///< dk and dv are added to, wherever they are
  SinkRows sink;
  float* dsink = nullptr;  ///< added to; like the sinks
  std::int64_t dsink_row_stride = 0;
  std::int64_t dsink_sink_stride = 0;
  unsigned* counters = nullptr;  ///< [kLargeRowCounters]
};

/// Enqueues the last kernel of a backward. `type` is that of 16-bit tensors. Without large rows it
/// only looks for them.
void enqueue_large_rows(const LargeRowParams& params, DType type, int num_ctas,
                        cudaStream_t stream);

}  // namespace magi::sm90
