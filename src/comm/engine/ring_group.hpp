// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "comm/engine/device_transport.hpp"
#include "comm/engine/engine.hpp"
#include "magi/comm.hpp"

namespace magi::comm {

/// The communicator over an engine; `backend` is a literal. Without `device` the group moves no
/// device memory.
std::unique_ptr<Communicator> make_ring_group(std::shared_ptr<Engine> engine, const char* backend,
                                              std::unique_ptr<DeviceTransport> device = nullptr);

/// The control part of a new group, ready for its ranks.
std::shared_ptr<SharedRegion> make_group_region(std::int32_t num_ranks, std::uint64_t nonce);

/// make_thread_group with engine options.
std::vector<std::unique_ptr<Communicator>> make_thread_group_with(std::int32_t num_ranks,
                                                                  const EngineOptions& options);

/// make_shm_group with engine options.
std::unique_ptr<Communicator> make_shm_group_with(std::int32_t rank, std::int32_t num_ranks,
                                                  const Bootstrap& bootstrap,
                                                  const EngineOptions& options);

}  // namespace magi::comm
