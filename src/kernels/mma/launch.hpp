// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "kernels/sm90/backward/launch.hpp"
#include "kernels/sm90/forward/launch.hpp"

// Kernels for every GPU since compute capability 8.0, by mma.sync, ldmatrix and cp.async. The host
// side of kernels/sm90 makes their lists and fills their parameters.
namespace magi::mma {

/// Shared memory of a CTA on GPUs of compute capability 8.6, 8.9 and 12.0; of 8.0; of 9.0 and 10.0.
inline constexpr std::size_t kSmallShared = 99 * 1024;
inline constexpr std::size_t kLargeShared = 163 * 1024;
inline constexpr std::size_t kLargestShared = 227 * 1024;

/// Kernels for GPUs whose CTAs have so much shared memory.
std::span<const sm90::ForwardInstance> forward_instances(std::size_t shared_bytes);
/// Likewise; where it is small, none for 256 : 256.
std::span<const sm90::BackwardInstance> backward_instances(std::size_t shared_bytes);

}  // namespace magi::mma
