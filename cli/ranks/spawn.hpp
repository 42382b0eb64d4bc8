// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace magi::cli {

/// Forks `num_ranks` processes that each run `body` with their rank, and waits for all. When one
/// fails, throws what it did, InternalError for a crash, with the message of the lowest rank of the
/// worst fault: InternalError, InvalidArgument, then EnvironmentUnfit for all else. Ends those that
/// are left a second after one has failed, and all of them where one does not end within `deadline`
/// after another, or is stopped for so long: a stopped rank never ends by itself. Must be called
/// before the process has started threads.
void spawn_ranks(std::int32_t num_ranks, std::chrono::milliseconds deadline,
                 const std::function<void(std::int32_t rank)>& body);

}  // namespace magi::cli
