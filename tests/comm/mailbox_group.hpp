// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "magi/comm.hpp"

namespace magi::testing {

/// Ranks as threads whose transport is a supplier's table of the least that is asked for: it moves
/// bytes of host memory through mailboxes and compares nothing.
std::vector<std::unique_ptr<Communicator>> make_mailbox_group(std::int32_t num_ranks);

}  // namespace magi::testing
