// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <initializer_list>

#include "kernels/schedule/blocks/block_key_lists.hpp"
#include "kernels/schedule/blocks/block_lists.hpp"
#include "kernels/sm90/arguments.hpp"

// Lists made on the device may have no room for a mask. What was computed with such lists is
// replaced by NaN, which nobody takes for a result. Also what results hold before a call.
namespace magi::sm90 {

/// Rows [rows, heads, dim].
struct PoisonedRows {
  StridedRows rows;
  std::int64_t num_rows = 0;
  std::int64_t heads = 0;
  std::int64_t dim = 1;
};
PoisonedRows spoiled_rows(const TensorView& tensor);

/// Sets `count` floats to -infinity: largest logits before a call.
void fill_no_logits(float* values, int count, cudaStream_t stream);

/// Enqueues a kernel that writes NaN to at most kMostPoisoned tensors where the lists do not hold,
/// else nothing.
inline constexpr int kMostPoisoned = 3;
void poison_unless_held(const BlockListOutcome& outcome,
                        std::initializer_list<PoisonedRows> targets, cudaStream_t stream);
void poison_unless_held(const BlockKeyOutcome& outcome, std::initializer_list<PoisonedRows> targets,
                        cudaStream_t stream);

}  // namespace magi::sm90
