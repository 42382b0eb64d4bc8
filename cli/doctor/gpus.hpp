// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "magi/comm.hpp"
#include "ranks/rank_place.hpp"

// What the machine has of GPUs, and ranks with a GPU each. Without CUDA there are none.
namespace magi::cli {

struct GpuFacts {
  std::string name;
  std::int32_t major = 0, minor = 0;  ///< compute capability
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;          ///< of them
  std::int32_t num_sms = 0;             ///< multiprocessors
  std::int64_t block_shared_bytes = 0;  ///< shared memory that a thread block may have
  std::string backend;                  ///< of attention that serves it; empty: none
  std::string refusal;                  ///< why none does
};

struct GpuMachine {
  std::string driver;   ///< what CUDA it is for; empty without one
  std::string runtime;  ///< the CUDA that this magi is built with; empty without
  std::string refusal;  ///< why there are no GPUs; empty where there are
  std::vector<GpuFacts> gpus;
  /// [gpus * gpus], row = reader: whether one reaches the other's memory.
  std::vector<bool> has_peer_access;
};
GpuMachine find_gpus();

/// Runs `body` on a thread per rank, rank r with GPU r, over nvlink where all reach each other,
/// else over NCCL, else over copies; gives the name of what carried the rows.
std::string run_gpu_ranks(
    std::int32_t num_ranks,
    const std::function<void(Communicator& group, const RankPlace& place)>& body);

/// "2.27.3" and where the library lies, or why there is none.
struct NcclFacts {
  std::string version;
  std::string path;
  std::string refusal;
};
NcclFacts find_nccl();

}  // namespace magi::cli
