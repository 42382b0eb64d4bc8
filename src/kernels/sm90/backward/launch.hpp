// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/sm90/backward/config.hpp"
#include "kernels/sm90/backward/params.hpp"

namespace magi::sm90 {

/// The time when a launch begins.
enum class LaunchStart : std::uint8_t {
  Ahead,   ///< with its start ahead of the end of the kernel before it
  Behind,  ///< behind all that the stream does before it, whatever that is
};

/// One compiled kernel.
struct BackwardInstance {
  BackwardConfig config;
  void (*launch)(const BackwardParams& params, int num_ctas, LaunchStart start,
                 cudaStream_t stream) = nullptr;
  /// Converts the dQ sums that `launch` leaves into dq; enqueued after it. Null where it makes
  /// none.
  void (*convert_dq)(const BackwardParams& params, cudaStream_t stream) = nullptr;
};

/// The one for head dims up to 256, whose warpgroups share the keys of a k tile: with a softcap or
/// without, as a call says.
BackwardInstance shared_keys_instance(DType type);
/// The one for head dims of q and k up to 192 and of v up to 128, likewise.
BackwardInstance long_query_instance(DType type);

/// The one for head dims up to 128 whose k tiles have 64 keys and whose warpgroups have q tiles of
/// their own; without a softcap. It makes dK and dV alone.
BackwardInstance own_rows_instance(DType type);

/// The kernels of the library that serve any mask.
std::span<const BackwardInstance> backward_instances();

}  // namespace magi::sm90
