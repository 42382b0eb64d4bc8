// SPDX-License-Identifier: Apache-2.0
#include "ranks/gpu_group.hpp"

#include "base/log.hpp"

namespace magi::cli {

std::shared_ptr<Communicator> make_gpu_group(const std::shared_ptr<Communicator>& base,
                                             std::chrono::seconds deadline) {
  std::string reason;
  try {
    return make_nvlink_group(base, base->rank(), {.deadline = deadline});
  } catch (const CommError& error) {  // on all ranks alike
    reason = error.what();
  }
  const Bootstrap bootstrap = [base](std::span<const std::byte> bytes) {
    return base->allgather_sync(bytes);
  };
  try {
    auto group = make_nccl_group(base->rank(), base->num_ranks(), base->rank(), bootstrap,
                                 {.deadline = deadline});
    if (base->rank() == 0) {
      log(LogLevel::Info, "comm", [&] { return "the group goes over nccl, as " + reason; });
    }
    return group;
  } catch (const CommError& error) {
    throw CommError("no nvlink: " + reason + "; no nccl: " + error.what(), error.failure());
  }
}

}  // namespace magi::cli
