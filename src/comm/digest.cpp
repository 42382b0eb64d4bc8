// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>

#include "base/words.hpp"
#include "magi/comm.hpp"

namespace magi {

void check_plan_digest_sync(Communicator& communicator, std::uint64_t digest) {
  const auto all = communicator.allgather_sync(std::as_bytes(std::span(&digest, 1)));
  std::uint64_t first = 0;
  std::string differing;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::uint64_t seen = 0;
    if (all[rank].size() != sizeof(seen)) {
      throw CommError("rank " + std::to_string(rank) + " gave " + std::to_string(all[rank].size()) +
                          " bytes as plan digest; expected 8",
                      CommFailure::PlanMismatch);
    }
    std::memcpy(&seen, all[rank].data(), sizeof(seen));
    if (rank == 0) first = seen;
    if (seen == first) continue;
    differing +=
        (differing.empty() ? "rank " : ", rank ") + std::to_string(rank) + " has plan " + hex(seen);
  }
  if (differing.empty()) return;
  throw CommError("ranks hold different plans: rank 0 has plan " + hex(first) + ", " + differing,
                  CommFailure::PlanMismatch);
}

}  // namespace magi
