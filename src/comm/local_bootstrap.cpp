// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "comm/local_socket.hpp"
#include "comm/meeting.hpp"
#include "comm/validate.hpp"
#include "magi/comm.hpp"

namespace magi {
namespace {

using comm::Deadline;
using comm::LocalSocket;
using comm::StreamSocket;

constexpr std::size_t kMaxNameBytes = 80;

/// An abstract Unix socket, for processes of one machine and one user.
class LocalPlace final : public comm::MeetingPlace {
 public:
  explicit LocalPlace(std::string name) : name_(std::move(name)) {}

  std::string name() const override { return name_; }

  std::optional<StreamSocket> listen_as_host(std::int32_t num_ranks) override {
    return LocalSocket::listen_at(address(), num_ranks);
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
    auto socket = LocalSocket::connect_to(address());
    if (!socket || !socket->peer().is_same_user) return std::nullopt;
    return socket;
  }

 private:
  std::string address() const { return "magi/" + std::to_string(geteuid()) + "/" + name_; }

  std::string name_;
};

}  // namespace

Bootstrap local_bootstrap(const std::string& name, std::int32_t rank, std::int32_t num_ranks,
                          std::chrono::milliseconds deadline) {
  comm::check_group_size(rank, num_ranks, {.deadline = deadline});
  if (name.empty() || name.size() > kMaxNameBytes) {
    throw invalid("name", "'" + name + "'", "1 to 80 characters");
  }
  return comm::meet(std::make_unique<LocalPlace>(name), rank, num_ranks, deadline);
}

}  // namespace magi
