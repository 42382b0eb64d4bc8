// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "magi/comm.hpp"
#include "magi/error.hpp"

// What transports tell the log, in the same words.
namespace magi::comm {

/// info: the rank's group is there; by_what() says what carries its rows.
template <typename ByWhat>
void log_group(const Communicator& group, const ByWhat& by_what) noexcept {
  log(LogLevel::Info, "comm", [&] {
    return "rank " + std::to_string(group.rank()) + " of " + std::to_string(group.num_ranks()) +
           " is in a group over " + group.backend() + ": " + by_what();
  });
}

/// error: the rank ends its group for a reason that other ranks throw.
inline void log_abort(std::int32_t rank, std::string_view reason) noexcept {
  log(LogLevel::Error, "comm",
      [&] { return "rank " + std::to_string(rank) + " aborts its group: " + std::string(reason); });
}

/// The findings of a thread that watches the rank's group. The rank's next call throws it, which
/// may come late or never, so it is an error here; but processes that end are info, as those of a
/// program that is done do so at different times.
inline void log_found_failure(std::int32_t rank, const CommError& error) noexcept {
  const bool is_end = error.failure() == CommFailure::PeerDied;
  log(is_end ? LogLevel::Info : LogLevel::Error, "comm",
      [&] { return "the group of rank " + std::to_string(rank) + " has failed: " + error.what(); });
}

}  // namespace magi::comm
