// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "comm/net/meeting.hpp"
#include "comm/net/tcp_socket.hpp"
#include "magi/comm.hpp"

namespace magi {
namespace {

using comm::Deadline;
using comm::StreamSocket;
using comm::TcpAddress;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kGreetingMagic = 0x6d61676968656c6f;  // "magihelo"
/// Rank 0 takes the first free port of so many: the first may be held by another service of the
/// same launch, as torchrun's store.
constexpr std::int32_t kNumPorts = 8;
/// The time within which rank 0 greets.
constexpr std::chrono::milliseconds kGreetingTime{500};

/// The greeting of rank 0 to whoever connects. It speaks first, so that a service that is found at
/// one of the ports by mistake is told nothing.
struct Greeting {
  std::uint64_t magic = kGreetingMagic;
  std::uint64_t group = 0;
};

/// FNV-1a.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return hash;
}

/// One of a few TCP ports of rank 0's host.
class TcpMeetingPlace final : public comm::MeetingPlace {
 public:
  TcpMeetingPlace(TcpPlace place, std::vector<TcpAddress> addresses)
      : place_(std::move(place)),
        addresses_(std::move(addresses)),
        greeting_{.group = hash_of(place_.name)} {}

  std::string name() const override { return place_.name; }

  std::string obstacle() const override {
    return " for it at " + place_.address + ", ports " + std::to_string(place_.port) + " to " +
           std::to_string(end_port() - 1);
  }

  std::optional<StreamSocket> listen_as_host(std::int32_t num_ranks) override {
    const bool is_local = std::all_of(addresses_.begin(), addresses_.end(), comm::is_loopback);
    const auto reach = is_local ? comm::TcpReach::ThisMachine : comm::TcpReach::AnyMachine;
    for (std::int32_t port = place_.port; port < end_port(); ++port) {
      auto listener = comm::listen_tcp(reach, port, num_ranks);
      if (listener) return listener;
      const Deadline soon = Clock::now() + kGreetingTime;
      if (greeted(comm::loopback_address(), port, soon)) return std::nullopt;
    }
    throw CommError("rank 0 of group '" + place_.name + "' found no free TCP port from " +
                        std::to_string(place_.port) + " to " + std::to_string(end_port() - 1),
                    CommFailure::System);
  }

  std::optional<Arrival> accept(const StreamSocket& listener) override {
    auto socket = comm::accept_tcp(listener);
    if (!socket) return std::nullopt;
    if (socket->send_value(greeting_, Clock::now() + kGreetingTime) != StreamSocket::Result::Done) {
      return std::nullopt;
    }
    std::string who = comm::tcp_peer(*socket);
    return Arrival{.socket = std::move(*socket), .who = std::move(who)};
  }

  std::optional<StreamSocket> connect(Deadline deadline) override {
    for (const TcpAddress& address : addresses_) {
      for (std::int32_t port = place_.port; port < end_port(); ++port) {
        if (auto socket = greeted(address, port, deadline)) return socket;
      }
    }
    return std::nullopt;
  }

 private:
  std::int32_t end_port() const { return std::min(place_.port + kNumPorts, 65536); }

  /// The connection to the group's rank 0; nothing where another or no one listens.
  std::optional<StreamSocket> greeted(const TcpAddress& address, std::int32_t port,
                                      Deadline deadline) const {
    const Deadline soon = std::min(deadline, Clock::now() + kGreetingTime);
    auto socket = comm::connect_tcp(address, port, soon);
    if (!socket) return std::nullopt;
    Greeting seen{.magic = 0};
    const bool is_host = socket->receive_value(seen, soon) == StreamSocket::Result::Done &&
                         seen.magic == greeting_.magic && seen.group == greeting_.group;
    if (!is_host) return std::nullopt;
    return socket;
  }

  TcpPlace place_;
  std::vector<TcpAddress> addresses_;
  Greeting greeting_;
};

}  // namespace

Bootstrap tcp_bootstrap(const TcpPlace& place, std::int32_t rank, std::int32_t num_ranks,
                        std::chrono::milliseconds deadline) {
  if (place.port < 1 || place.port > 65535) throw invalid("port", place.port, "1 to 65535");
  auto meeting_place = std::make_unique<TcpMeetingPlace>(place, comm::resolve_host(place.address));
  return comm::meet(std::move(meeting_place), rank, num_ranks, deadline);
}

}  // namespace magi
