// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/sm90/forward/config.hpp"
#include "kernels/sm90/forward/params.hpp"

namespace magi::sm90 {

/// One compiled kernel.
struct ForwardInstance {
  ForwardConfig config;
  void (*launch)(const ForwardParams& params, int num_ctas, cudaStream_t stream) = nullptr;
};

/// The kernels of the library.
std::span<const ForwardInstance> forward_instances();

/// The first instance for a type that holds both head dims; null when there is none.
const ForwardInstance* find_forward_instance(DType type, int dim_qk, int dim_v,
                                             FeatureSet features);

/// Sets `count` floats to -infinity.
void fill_no_logits(float* values, int count, cudaStream_t stream);

}  // namespace magi::sm90
