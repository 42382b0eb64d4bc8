// SPDX-License-Identifier: Apache-2.0
#include "magi/error.hpp"
#include "rank_memory.hpp"

namespace magi::reliability {

std::unique_ptr<RankMemory> make_gpu_memory(std::int32_t /*device*/) {
  throw InvalidArgument("--transport is nvlink; allowed: shm, as this build has no CUDA");
}

std::size_t free_gpu_bytes(std::int32_t /*device*/) { return 0; }

}  // namespace magi::reliability
