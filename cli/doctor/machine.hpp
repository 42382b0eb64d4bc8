// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "doctor/gpus.hpp"
#include "magi/attention_limits.hpp"

// What the machine has beside GPUs, and what serves it.
namespace magi::cli {

struct HostFacts {
  std::string text;  ///< processor and system
  std::int32_t num_cores = 1;
  std::int64_t memory_bytes = 0;
  std::int64_t available_bytes = 0;  ///< of them
  /// The size of /dev/shm, which NCCL uses between GPUs that do not reach each other. (Ranks of
  /// magi on one machine share ordinary memory.)
  std::int64_t shm_bytes = 0;
  std::int64_t shm_free_bytes = 0;
};
HostFacts find_host();

struct ServedDevice {
  std::int32_t ordinal = kCpuDevice;
  std::string name;  ///< "the CPU", "GPU 0", ...
};
/// An attention backend and the devices of this machine that it serves.
struct BackendFacts {
  std::string name;
  std::vector<ServedDevice> served;
  std::vector<std::string> refused;  ///< "GPU 1: <why no backend serves it>", or why there are none
  AttentionLimits limits;            ///< where anything is served
};
std::vector<BackendFacts> find_backends(const GpuMachine& machine);

/// "head dims 8 to 256 in steps of 8, bfloat16 or float16, ...": limits in words.
std::string limits_text(const AttentionLimits& limits);

}  // namespace magi::cli
