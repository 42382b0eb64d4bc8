// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "kernels/sm90/backward/launch.hpp"
#include "kernels/sm90/forward/launch.hpp"

// Kernels for every GPU since compute capability 8.0, by mma.sync, ldmatrix and cp.async. The host
// side of kernels/sm90 makes their lists and fills their parameters.
namespace magi::mma {

std::span<const sm90::ForwardInstance> forward_instances();
std::span<const sm90::BackwardInstance> backward_instances();

}  // namespace magi::mma
