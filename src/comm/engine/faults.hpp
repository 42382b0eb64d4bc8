// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace magi::comm {

enum class FaultAction : std::int32_t {
  None,
  Delay,     ///< sleep before the packet
  Drop,      ///< do not send it, go on as if sent
  Truncate,  ///< send only the first half of its payload
  Kill,      ///< SIGKILL the own process instead of sending it
};

/// A fault that a rank commits when it sends its packet number `at_packet`, counted from 0.
struct Fault {
  FaultAction action = FaultAction::None;
  std::int64_t at_packet = 0;
  std::chrono::milliseconds delay{0};
};

}  // namespace magi::comm
