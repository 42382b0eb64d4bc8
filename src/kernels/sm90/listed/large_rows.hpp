// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sm90/listed/params.hpp"
#include "kernels/sm90/listed/prepare.hpp"

namespace magi::sm90 {

/// Gradients through rows whose lse is so large that one float32 holds it too coarsely: the main
/// kernel has left them out, and written 0 as their dq.
struct ListedLargeRowParams {
  ListedBackwardParams call;
  ListedRowParams rows;  ///< delta and corrections of large rows are written
  SinkRows sink;
  bool is_ordered = false;  ///< a sum's additions come in the order of tokens, heads and lists
};

/// Enqueues dq of large rows, and adds what they give to dk_sums and dv_sums. `type` is that of
/// 16-bit tensors. Without large rows it only looks for them.
void enqueue_listed_large_rows(const ListedLargeRowParams& params, DType type, std::int32_t num_sms,
                               cudaStream_t stream);

}  // namespace magi::sm90
