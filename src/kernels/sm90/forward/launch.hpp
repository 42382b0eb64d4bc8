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

}  // namespace magi::sm90
