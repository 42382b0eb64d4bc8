// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

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

}  // namespace magi::comm
