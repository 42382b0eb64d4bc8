// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "magi/comm.hpp"

namespace magi::comm {

/// One step of a group's start that every rank does: all give bytes to all. A rank whose `give`
/// throws takes part all the same, with the reason, which then the other ranks throw as a CommError
/// naming it. [num_ranks] in rank order.
std::vector<std::vector<std::byte>> start_together(
    const Bootstrap& bootstrap, std::int32_t num_ranks,
    const std::function<std::vector<std::byte>()>& give);

/// Where a process runs.
struct Machine {
  std::string boot;     ///< of the running system; equal in all its containers
  std::string network;  ///< what 127.0.0.1 reaches: a container may have its own
};
Machine own_machine();

}  // namespace magi::comm
