// SPDX-License-Identifier: Apache-2.0
#include "comm/net/group_size.hpp"

#include <string>

#include "base/check.hpp"

namespace magi::comm {

void check_group_size(std::int32_t rank, std::int32_t num_ranks, const CommOptions& options) {
  if (num_ranks < 1 || num_ranks > kMaxRanks) throw invalid("num_ranks", num_ranks, "1 to 1024");
  if (rank < 0 || rank >= num_ranks) {
    throw invalid("rank", rank, "0 to " + std::to_string(num_ranks - 1));
  }
  if (options.deadline.count() < 1 || options.deadline > kLongestDeadline) {
    throw invalid("deadline", std::to_string(options.deadline.count()) + " ms",
                  "1 ms to 2^40 ms (34 years)");
  }
  if (options.window_bytes == 0) throw invalid("window_bytes", 0, "1 or more");
}

}  // namespace magi::comm
