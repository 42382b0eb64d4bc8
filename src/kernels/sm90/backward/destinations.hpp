// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <vector>

#include "kernels/schedule/host/backward_list.hpp"
#include "kernels/sm90/backward/params.hpp"
#include "magi/attention.hpp"

// Where the gradients of keys go if parts have places of their own.
namespace magi::sm90 {

/// One for each segment of the list: dk and dv of `args`, or the part's own.
std::vector<KeyDestination> key_destinations(const BackwardArgs& args,
                                             std::span<const KeySegment> segments,
                                             std::span<const PartGradients> gradients);

/// Enqueues a copy to device memory. The values travel as kernel arguments: a graph holds them.
void store_destinations(std::span<const KeyDestination> destinations, KeyDestination* target,
                        cudaStream_t stream);

}  // namespace magi::sm90
