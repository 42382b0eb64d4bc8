// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sm90/arguments.hpp"

// Kernels that run before and after the main kernel of a backward with key lists.
namespace magi::sm90 {

struct ListedRowParams {
  std::int32_t rows_q = 0;
  std::int32_t heads_q = 0;
  std::int32_t dim_v = 0;
  StridedRows out;  ///< 16-bit, like dout
  StridedRows dout;
  StridedRows lse;
  StridedRows dlse;  ///< without data: zeros
  /// [rows_q, heads_q]: sum of dout * out, less dlse; 0 if lse is infinite.
  float* delta = nullptr;
};

/// Enqueues the delta of every row.
void enqueue_listed_delta(const ListedRowParams& params, DType type, cudaStream_t stream);

/// Enqueues dsink, laid out like the sinks, from the deltas of all rows. Sums over rows have a
/// fixed order.
void enqueue_listed_sink_gradient(const ListedRowParams& params, const SinkRows& sink,
                                  const SinkRows& dsink, cudaStream_t stream);

}  // namespace magi::sm90
