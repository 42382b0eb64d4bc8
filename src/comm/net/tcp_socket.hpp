// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/net/stream_socket.hpp"

namespace magi::comm {

/// An IPv6 address, or an IPv4 one in its IPv6 form.
using TcpAddress = in6_addr;

/// This machine, as it names itself; connections do not leave it.
TcpAddress loopback_address();
bool is_loopback(const TcpAddress& address);
/// The addresses of a host's name or number, best first. Throws InvalidArgument naming the host
/// when it has none.
std::vector<TcpAddress> resolve_host(const std::string& host);
/// Addresses at which other machines may reach this one.
std::vector<TcpAddress> own_addresses();

enum class TcpReach { ThisMachine, AnyMachine };
/// A socket that listens at `port`, or at a free one for 0; nothing when the port is taken.
std::optional<StreamSocket> listen_tcp(TcpReach reach, std::int32_t port, int backlog);
std::int32_t port_of(const StreamSocket& listener);
/// Nothing when no one listens there or answers before the deadline.
std::optional<StreamSocket> connect_tcp(const TcpAddress& address, std::int32_t port,
                                        Deadline deadline);
/// Accepts a connection of a listening socket; nothing if none came.
std::optional<StreamSocket> accept_tcp(const StreamSocket& listener);
/// The other end, as "10.0.0.1 port 4711".
std::string tcp_peer(const StreamSocket& socket);

}  // namespace magi::comm
