// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "magi/comm.hpp"

namespace magi::cli {

/// The ranks of `base` with a GPU each, that of the rank's number: over nvlink where it is
/// possible, else over nccl. Collective.
std::shared_ptr<Communicator> make_gpu_group(const std::shared_ptr<Communicator>& base,
                                             std::chrono::seconds deadline);

}  // namespace magi::cli
