// SPDX-License-Identifier: Apache-2.0
#include "comm/net/machine.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "magi/error.hpp"

namespace magi::comm {

Machine own_machine() {
  Machine machine;
  std::array<char, 65> host{};
  if (gethostname(host.data(), host.size() - 1) == 0) machine.host = host.data();
  std::ifstream("/proc/sys/kernel/random/boot_id") >> machine.boot;
  std::array<char, 64> link{};
  const auto size = readlink("/proc/self/ns/net", link.data(), link.size());
  if (size > 0) machine.network.assign(link.data(), static_cast<std::size_t>(size));
  return machine;
}

void fill_random(std::span<std::byte> bytes) {
  if (getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size())) return;
  throw CommError("the machine gave no random bytes", CommFailure::System);
}

}  // namespace magi::comm
