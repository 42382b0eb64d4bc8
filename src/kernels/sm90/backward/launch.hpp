// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/sm90/backward/config.hpp"
#include "kernels/sm90/backward/params.hpp"

namespace magi::sm90 {

/// One compiled kernel.
struct BackwardInstance {
  BackwardConfig config;
  void (*launch)(const BackwardParams& params, int num_ctas, cudaStream_t stream) = nullptr;
  /// After it: dq from the sums that it leaves.
  void (*finish)(const BackwardParams& params, cudaStream_t stream) = nullptr;
};

/// The kernels of the library.
std::span<const BackwardInstance> backward_instances();

/// The instance for a type and the larger of the two head dims; null when there is none.
const BackwardInstance* find_backward_instance(DType type, int dim, bool has_softcap);

}  // namespace magi::sm90
