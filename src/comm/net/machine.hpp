// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace magi::comm {

/// The machine on which a process runs.
struct Machine {
  std::string host;     ///< its host name
  std::string boot;     ///< of the running system; equal in all its containers
  std::string network;  ///< what 127.0.0.1 reaches: a container may have its own
};
Machine own_machine();

/// Fills `bytes` with what nobody can guess. Throws CommError where the machine gives none.
void fill_random(std::span<std::byte> bytes);

}  // namespace magi::comm
