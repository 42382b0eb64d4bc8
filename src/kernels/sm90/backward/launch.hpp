// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/sm90/backward/config.hpp"
#include "kernels/sm90/backward/params.hpp"

namespace magi::sm90 {

/// The time when a launched kernel may start.
enum class LaunchStart : std::uint8_t {
  Ahead,   ///< before the previous kernel ends (programmatic dependent launch)
  Behind,  ///< after all earlier work of the stream
};

/// One compiled kernel.
struct BackwardInstance {
  BackwardConfig config;
  void (*launch)(const BackwardParams& params, int num_ctas, LaunchStart start,
                 cudaStream_t stream) = nullptr;
  /// Enqueues the kernel that converts dQ sums of `launch` into dq. Null if there are none.
  void (*convert_dq)(const BackwardParams& params, cudaStream_t stream) = nullptr;
};

/// The instance for head dims up to 256, whose warpgroups share the keys of a k tile. The call says
/// whether there is a softcap.
BackwardInstance shared_keys_instance(DType type);
/// The instance for head dims of q and k up to 192 and of v up to 128, likewise.
BackwardInstance long_query_instance(DType type);

/// The instance for head dims up to 128 whose k tiles have 64 keys and whose warpgroups have their
/// own q tiles; without a softcap. It computes dK and dV only.
BackwardInstance own_rows_instance(DType type);

/// The kernels of the library that serve any mask.
std::span<const BackwardInstance> backward_instances();

}  // namespace magi::sm90
