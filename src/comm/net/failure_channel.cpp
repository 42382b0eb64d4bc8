// SPDX-License-Identifier: Apache-2.0
#include "comm/net/failure_channel.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "comm/net/machine.hpp"

namespace magi::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kAlarmMagic = 0x6d616769616c726d;  // "magialrm"
constexpr std::uint32_t kMaxTextBytes = 1 << 16;
/// A message is small and sent at once; its rest follows within this time or never.
constexpr std::chrono::seconds kMessageTime{1};

struct Hello {
  std::uint64_t magic = kAlarmMagic;
  std::array<std::byte, 16> secret{};
  std::int32_t rank = 0;
  std::int32_t reserved = 0;
};

/// Precedes the text. `failure` 0: the rank leaves in order.
struct Alarm {
  std::uint64_t magic = kAlarmMagic;
  std::int32_t failure = 0;
  std::uint32_t num_bytes = 0;
};

CommError ended(const std::string& rank) {
  return {rank + " ended, or its machine is out of reach", CommFailure::PeerDied};
}

}  // namespace

FailureChannel::FailureChannel(std::int32_t rank, std::int32_t num_ranks)
    : rank_(rank),
      peers_(static_cast<std::size_t>(num_ranks)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_.is_open()) throw_socket("make an event");
  for (std::int32_t each = 0; each < num_ranks; ++each) {
    names_.push_back("rank " + std::to_string(each));
  }
}

FailureChannel::~FailureChannel() = default;

FailureChannel::Invitation FailureChannel::open(TcpReach reach) {
  Invitation invitation;
  fill_random(invitation.secret);
  secret_ = invitation.secret;
  auto listener = listen_tcp(reach, 0, static_cast<int>(peers_.size()));
  if (!listener) throw CommError("rank 0 found no free TCP port", CommFailure::System);
  listener_ = std::move(*listener);
  invitation.port = port_of(listener_);
  if (reach == TcpReach::ThisMachine) return invitation;
  const std::vector<TcpAddress> addresses = own_addresses();
  const std::size_t count = std::min(addresses.size(), invitation.addresses.size());
  std::copy_n(addresses.begin(), count, invitation.addresses.begin());
  invitation.num_addresses = static_cast<std::int32_t>(count);
  return invitation;
}

bool FailureChannel::connect(const Invitation& invitation, bool is_same_machine,
                             Deadline deadline) {
  std::vector<TcpAddress> addresses(invitation.addresses.begin(),
                                    invitation.addresses.begin() + invitation.num_addresses);
  if (is_same_machine) addresses.insert(addresses.begin(), loopback_address());
  // Every address has its share of the time: packets to one that leads nowhere may just vanish.
  const auto share = (deadline - Clock::now()) / std::max<std::size_t>(1, addresses.size());
  for (const TcpAddress& address : addresses) {
    auto socket = connect_tcp(address, invitation.port, Clock::now() + share);
    if (!socket) continue;
    const Hello hello{.secret = invitation.secret, .rank = rank_};
    if (socket->send_value(hello, deadline) != StreamSocket::Result::Done) continue;
    peers_[0] = std::move(*socket);
    return true;
  }
  return false;
}

void FailureChannel::accept(const std::vector<bool>& is_connected, Deadline deadline) {
  auto missing = std::count(is_connected.begin() + 1, is_connected.end(), true);
  while (missing > 0) {
    if (!listener_.wait_readable(deadline)) {
      throw CommError(
          "rank 0 did not hear from " + std::to_string(missing) + " ranks that have connected",
          CommFailure::Timeout);
    }
    auto socket = accept_tcp(listener_);
    Hello hello;
    if (!socket ||
        socket->receive_value(hello, Clock::now() + kMessageTime) != StreamSocket::Result::Done)
      continue;
    const bool is_rank = hello.magic == kAlarmMagic && hello.secret == secret_ && hello.rank > 0 &&
                         hello.rank < static_cast<std::int32_t>(peers_.size());
    if (!is_rank) continue;
    StreamSocket& peer = peers_[static_cast<std::size_t>(hello.rank)];
    if (!peer.is_open()) --missing;
    peer = std::move(*socket);
  }
  listener_.close();
}

std::optional<CommError> FailureChannel::listen(std::chrono::milliseconds limit) {
  std::vector<pollfd> queries{{.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
  std::vector<std::int32_t> ranks;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    if (!peers_[peer].is_open()) continue;
    queries.push_back({.fd = peers_[peer].fd(), .events = POLLIN, .revents = 0});
    ranks.push_back(static_cast<std::int32_t>(peer));
  }
  if (poll(queries.data(), queries.size(), static_cast<int>(limit.count())) <= 0) return {};
  if (queries[0].revents != 0) {
    std::uint64_t count = 0;
    static_cast<void>(!read(wake_.fd(), &count, sizeof(count)));
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (queries[i + 1].revents == 0) continue;
    if (auto told = hear(ranks[i])) return told;
  }
  return {};
}

std::optional<CommError> FailureChannel::hear(std::int32_t peer) {
  StreamSocket socket = std::move(peers_[static_cast<std::size_t>(peer)]);
  const Deadline soon = Clock::now() + kMessageTime;
  Alarm alarm;
  if (socket.receive_value(alarm, soon) != StreamSocket::Result::Done ||
      alarm.magic != kAlarmMagic || alarm.num_bytes > kMaxTextBytes) {
    return ended(name_of(peer));
  }
  if (alarm.failure == 0) return {};
  std::string text(alarm.num_bytes, ' ');
  if (socket.receive_all(std::as_writable_bytes(std::span(text)), soon) !=
      StreamSocket::Result::Done) {
    return ended(name_of(peer));
  }
  return CommError(text, static_cast<CommFailure>(alarm.failure));
}

void FailureChannel::wake() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!write(wake_.fd(), &one, sizeof(one)));
}

void FailureChannel::report(const CommError& error) noexcept {
  send(static_cast<std::int32_t>(error.failure()),
       std::string_view(error.what()).substr(0, kMaxTextBytes));
}

void FailureChannel::leave() noexcept {
  send(0, "");
  for (StreamSocket& peer : peers_) peer.close();
}

void FailureChannel::send(std::int32_t failure, std::string_view text) noexcept {
  const Alarm alarm{.failure = failure, .num_bytes = static_cast<std::uint32_t>(text.size())};
  const Deadline soon = Clock::now() + kMessageTime;
  for (StreamSocket& peer : peers_) {
    if (!peer.is_open()) continue;
    try {
      if (peer.send_value(alarm, soon) == StreamSocket::Result::Done) {
        peer.send_all(std::as_bytes(std::span(text)), soon);
      }
    } catch (const std::exception&) {
      continue;  // a peer that cannot be told sees the connection end
    }
  }
}

}  // namespace magi::comm
