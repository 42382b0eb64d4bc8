// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <vector>

#include "kernels/schedule/host/backward_list.hpp"
#include "kernels/sm90/backward/params.hpp"
#include "magi/attention.hpp"

// The places where gradients of keys go, if parts of the keys have their own.
namespace magi::sm90 {

/// Returns a destination for each segment of the list: dk and dv of `args`, or those of the part.
std::vector<KeyDestination> key_destinations(const BackwardArgs& args,
                                             std::span<const KeySegment> segments,
                                             std::span<const PartGradients> gradients);

/// Enqueues a copy to device memory. The values are kernel arguments, so a graph holds them.
void store_destinations(std::span<const KeyDestination> destinations, KeyDestination* target,
                        cudaStream_t stream);

}  // namespace magi::sm90
