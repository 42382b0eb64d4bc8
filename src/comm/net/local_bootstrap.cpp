// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "comm/net/local_socket.hpp"
#include "comm/net/meeting.hpp"
#include "magi/comm.hpp"

namespace magi {
namespace {

using comm::Deadline;
using comm::LocalSocket;
using comm::StreamSocket;

/// Abstract names belong to whom takes them first, of whatever user. Rank 0 takes the first of
/// these that is free, the others look at all.
constexpr int kNumAddresses = 8;

/// An abstract Unix socket, for processes of one machine and one user.
class LocalPlace final : public comm::MeetingPlace {
 public:
  explicit LocalPlace(std::string name) : name_(std::move(name)) {}

  std::string name() const override { return name_; }

  std::optional<StreamSocket> listen_as_host(std::int32_t num_ranks) override {
    for (int choice = 0; choice < kNumAddresses; ++choice) {
      if (auto listener = LocalSocket::listen_at(address(choice), num_ranks)) return listener;
      const auto holder = LocalSocket::connect_to(address(choice));
      if (holder && holder->peer().is_same_user) return std::nullopt;
      if (holder) stranger_ = holder->peer();
    }
    throw CommError("other processes hold the addresses of group '" + name_ + "'" + obstacle() +
                        "; another name is needed",
                    CommFailure::System);
  }

  std::optional<Arrival> accept(const StreamSocket& listener) override {
    auto socket = listener.accept();
    if (!socket) return std::nullopt;
    LocalSocket arrived(std::move(*socket));
    const LocalSocket::Peer peer = arrived.peer();
    if (!peer.is_same_user) return std::nullopt;
    return Arrival{.socket = std::move(arrived), .who = "process " + std::to_string(peer.pid)};
  }

  std::optional<StreamSocket> connect(Deadline /*deadline*/) override {
    for (int choice = 0; choice < kNumAddresses; ++choice) {
      auto socket = LocalSocket::connect_to(address(choice));
      if (!socket) continue;
      if (socket->peer().is_same_user) return socket;
      stranger_ = socket->peer();
    }
    return std::nullopt;
  }

  std::string obstacle() const override {
    if (!stranger_) return {};
    return "; process " + std::to_string(stranger_->pid) + " of user " +
           std::to_string(stranger_->user) + " listens at an address of the group";
  }

 private:
  std::string address(int choice) const {
    return "magi/" + std::to_string(geteuid()) + "." + std::to_string(choice) + "/" + name_;
  }

  std::string name_;
  std::optional<LocalSocket::Peer> stranger_;  ///< of another user, the last that was met
};

}  // namespace

Bootstrap local_bootstrap(const std::string& name, std::int32_t rank, std::int32_t num_ranks,
                          std::chrono::milliseconds deadline) {
  return comm::meet(std::make_unique<LocalPlace>(name), rank, num_ranks, deadline);
}

}  // namespace magi
