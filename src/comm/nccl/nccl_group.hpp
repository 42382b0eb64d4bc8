// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "comm/nccl/comm_device.hpp"
#include "comm/nccl/nccl_library.hpp"
#include "magi/comm.hpp"

namespace magi::comm {

/// Called when the group is made: a rank without its device still takes part, and says so.
using MakeCommDevice = std::function<std::shared_ptr<const CommDevice>()>;

/// make_nccl_group on any device.
std::unique_ptr<Communicator> make_nccl_group_on(std::int32_t rank, std::int32_t num_ranks,
                                                 const MakeCommDevice& make_device,
                                                 const Bootstrap& bootstrap,
                                                 const NcclOptions& options);

}  // namespace magi::comm
