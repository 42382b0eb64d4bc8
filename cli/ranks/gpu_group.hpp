// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "magi/comm.hpp"

namespace magi::cli {

/// What carries rows between the ranks of this machine.
enum class Transport : std::int32_t { Shm, Nvlink, Nccl };
const char* transport_name(Transport transport);
/// Throws InvalidArgument naming `flag` for a name that is none.
Transport transport_from_name(const std::string& flag, const std::string& name);

struct GpuGroupOptions {
  std::optional<Transport> transport;  ///< absent: nvlink where it is possible, else nccl
  std::string nccl;                    ///< path of the library; empty: see NcclOptions
  std::chrono::seconds deadline{100};
};

/// The ranks of `base` with a GPU each, that of the rank's number. Collective.
std::shared_ptr<Communicator> make_gpu_group(const std::shared_ptr<Communicator>& base,
                                             const GpuGroupOptions& options);

}  // namespace magi::cli
