// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/net/tcp_socket.hpp"
#include "comm/ranks.hpp"
#include "magi/comm.hpp"

// What is the same for bootstraps at any place.
namespace magi::testing {

/// Where no other test meets.
inline TcpPlace unique_place() {
  const auto listener = comm::listen_tcp(comm::TcpReach::ThisMachine, 0, 1);
  return {.address = "127.0.0.1", .port = comm::port_of(*listener), .name = unique_name()};
}

/// What a rank gives: `count` bytes, other ones on each rank.
inline std::vector<std::byte> bytes_of(std::int32_t rank, std::size_t count) {
  return std::vector<std::byte>(count, static_cast<std::byte>(rank + 1));
}

}  // namespace magi::testing
