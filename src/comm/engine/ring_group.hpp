// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/engine/engine.hpp"
#include "magi/comm.hpp"

namespace magi::comm {

/// One rank's way to exchange device memory within a group.
class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;
  /// Communicator::start_bytes with arguments that have been checked. Throws CommError.
  virtual void all_to_all_v(const ByteExchange& exchange, void* stream) = 0;
  /// Wakes the ranks that wait.
  virtual void abort(const std::string& reason) noexcept = 0;
};

/// Makes transports that copy between the ranks' buffers, for ranks that are threads of this
/// process; none where the build has no CUDA.
std::vector<std::unique_ptr<DeviceTransport>> make_loopback_transports(std::int32_t num_ranks,
                                                                       const CommOptions& options);

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
