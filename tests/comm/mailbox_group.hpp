// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "magi/comm.hpp"
#include "magi/comm_vtable.h"

namespace magi::testing {

/// Tables of a supplier that gives the least that is asked for: ranks that are threads move bytes
/// of host memory through mailboxes and compare nothing.
std::vector<magi_comm_vtable> make_mailbox_tables(std::int32_t num_ranks);

/// The groups over them, by rank.
std::vector<std::unique_ptr<Communicator>> make_mailbox_group(std::int32_t num_ranks);

}  // namespace magi::testing
