// SPDX-License-Identifier: Apache-2.0
#include "comm/net/tcp_socket.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/check.hpp"

namespace magi::comm {
namespace {

struct Endpoint {
  sockaddr_storage data{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&data); }
};

TcpAddress mapped(const in_addr& address) {
  TcpAddress result{};
  result.s6_addr[10] = result.s6_addr[11] = 0xff;
  std::memcpy(&result.s6_addr[12], &address, sizeof(address));
  return result;
}

TcpAddress address_in(const sockaddr& given) {
  if (given.sa_family == AF_INET) {
    return mapped(reinterpret_cast<const sockaddr_in&>(given).sin_addr);
  }
  return reinterpret_cast<const sockaddr_in6&>(given).sin6_addr;
}

Endpoint ipv6_endpoint(const TcpAddress& address, std::int32_t port) {
  Endpoint result{.size = sizeof(sockaddr_in6)};
  auto& place = reinterpret_cast<sockaddr_in6&>(result.data);
  place.sin6_family = AF_INET6;
  place.sin6_addr = address;
  place.sin6_port = htons(static_cast<std::uint16_t>(port));
  return result;
}

Endpoint ipv4_endpoint(const TcpAddress& address, std::int32_t port) {
  Endpoint result{.size = sizeof(sockaddr_in)};
  auto& place = reinterpret_cast<sockaddr_in&>(result.data);
  place.sin_family = AF_INET;
  std::memcpy(&place.sin_addr, &address.s6_addr[12], sizeof(place.sin_addr));
  place.sin_port = htons(static_cast<std::uint16_t>(port));
  return result;
}

Endpoint endpoint_of(const TcpAddress& address, std::int32_t port) {
  return IN6_IS_ADDR_V4MAPPED(&address) != 0 ? ipv4_endpoint(address, port)
                                             : ipv6_endpoint(address, port);
}

int open_tcp(int family) { return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

void set_option(const StreamSocket& socket, int level, int name, int value) {
  // Options speed things up or find dead machines earlier; without them all works.
  static_cast<void>(setsockopt(socket.fd(), level, name, &value, sizeof(value)));
}

/// Small messages go at once; a machine that vanished is noticed within about 15 s.
void tune(const StreamSocket& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 5);
}

/// A socket for whatever reaches the machine, over IPv4 and IPv6 where it has both.
StreamSocket open_listener(TcpReach reach, std::int32_t port, Endpoint& place) {
  const bool is_local = reach == TcpReach::ThisMachine;
  StreamSocket listener(is_local ? -1 : open_tcp(AF_INET6));
  if (listener.is_open()) {
    set_option(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    place = ipv6_endpoint(in6addr_any, port);
    return listener;
  }
  listener = StreamSocket(open_tcp(AF_INET));
  if (!listener.is_open()) throw_socket("open a TCP socket");
  place = ipv4_endpoint(is_local ? loopback_address() : TcpAddress{}, port);
  return listener;
}

std::string text_of(const TcpAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (IN6_IS_ADDR_V4MAPPED(&address) != 0) {
    inet_ntop(AF_INET, &address.s6_addr[12], text.data(), text.size());
  } else {
    inet_ntop(AF_INET6, &address, text.data(), text.size());
  }
  return text.data();
}

}  // namespace

TcpAddress loopback_address() { return mapped({.s_addr = htonl(INADDR_LOOPBACK)}); }

bool is_loopback(const TcpAddress& address) {
  return IN6_IS_ADDR_LOOPBACK(&address) != 0 ||
         (IN6_IS_ADDR_V4MAPPED(&address) != 0 && address.s6_addr[12] == 127);
}

std::vector<TcpAddress> resolve_host(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (status != 0) {
    throw invalid("address", "'" + host + "'",
                  std::string("the name or number of a host (") + gai_strerror(status) + ")");
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<TcpAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    addresses.push_back(address_in(*each->ai_addr));
  }
  return addresses;
}

std::vector<TcpAddress> own_addresses() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) throw_socket("list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(found, &freeifaddrs);
  std::vector<TcpAddress> addresses;
  for (const ifaddrs* each = found; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const TcpAddress address = address_in(*each->ifa_addr);
    // Addresses of a link mean nothing without the name of the interface.
    if (is_loopback(address) || IN6_IS_ADDR_LINKLOCAL(&address) != 0) continue;
    addresses.push_back(address);
  }
  return addresses;
}

std::optional<StreamSocket> listen_tcp(TcpReach reach, std::int32_t port, int backlog) {
  Endpoint place;
  StreamSocket listener = open_listener(reach, port, place);
  // A port whose last connections are still being wound up is free.
  set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(listener.fd(), place.get(), place.size) != 0 || listen(listener.fd(), backlog) != 0) {
    if (errno == EADDRINUSE) return std::nullopt;
    throw_socket("listen at TCP port " + std::to_string(port));
  }
  return listener;
}

std::int32_t port_of(const StreamSocket& listener) {
  Endpoint place{.size = sizeof(sockaddr_storage)};
  if (getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&place.data), &place.size) != 0) {
    throw_socket("name a TCP port");
  }
  // The port has one place in the addresses of both kinds.
  return ntohs(reinterpret_cast<const sockaddr_in&>(place.data).sin_port);
}

std::optional<StreamSocket> connect_tcp(const TcpAddress& address, std::int32_t port,
                                        Deadline deadline) {
  const Endpoint place = endpoint_of(address, port);
  StreamSocket socket(open_tcp(place.data.ss_family));
  if (!socket.is_open()) return std::nullopt;
  if (connect(socket.fd(), place.get(), place.size) != 0) {
    if (errno != EINPROGRESS || !socket.wait_writable(deadline)) return std::nullopt;
    int status = 0;
    socklen_t size = sizeof(status);
    if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &status, &size) != 0 || status != 0) {
      return std::nullopt;
    }
  }
  tune(socket);
  return socket;
}

std::optional<StreamSocket> accept_tcp(const StreamSocket& listener) {
  auto socket = listener.accept();
  if (socket) tune(*socket);
  return socket;
}

std::string tcp_peer(const StreamSocket& socket) {
  Endpoint place{.size = sizeof(sockaddr_storage)};
  if (getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&place.data), &place.size) != 0) {
    return "an unknown process";
  }
  const std::int32_t port = ntohs(reinterpret_cast<const sockaddr_in&>(place.data).sin_port);
  return "the process at " + text_of(address_in(*place.get())) + " port " + std::to_string(port);
}

}  // namespace magi::comm
