// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/net/tcp_socket.hpp"
#include "magi/error.hpp"

namespace magi::comm {

/// Connections that carry only failures: every rank has one to rank 0, which forwards what it
/// receives. If a process ends, its connection closes. For transports whose own ranks would wait
/// for a dead one. After the set-up all calls but wake() come from one thread.
class FailureChannel {
 public:
  /// The address at which rank 0 listens; the bootstrap carries it to the others.
  struct Invitation {
    std::int32_t port = 0;
    std::int32_t num_addresses = 0;
    std::array<TcpAddress, 8> addresses{};
    std::array<std::byte, 16> secret{};  ///< whoever knows it belongs to the group
  };

  FailureChannel(std::int32_t rank, std::int32_t num_ranks);
  ~FailureChannel();
  FailureChannel(const FailureChannel&) = delete;
  FailureChannel& operator=(const FailureChannel&) = delete;

  /// Sets the ranks' names in messages, [num_ranks]; at first they are "rank 0" and so on.
  void name_ranks(std::vector<std::string> names) { names_ = std::move(names); }
  const std::string& name_of(std::int32_t rank) const {
    return names_[static_cast<std::size_t>(rank)];
  }

  /// Rank 0 begins to listen.
  Invitation open(TcpReach reach);
  /// Another rank connects; false where no way leads there. It then hears no alarm.
  bool connect(const Invitation& invitation, bool is_same_machine, Deadline deadline);
  /// Rank 0 takes in the ranks that have connected; is_connected [num_ranks]. Throws CommError.
  void accept(const std::vector<bool>& is_connected, Deadline deadline);

  /// Waits for a failure that another rank reports, the end of a rank, wake() or the limit.
  std::optional<CommError> listen(std::chrono::milliseconds limit);
  /// Ends a listen() of another thread.
  void wake() noexcept;
  /// Reports a failure to all connected ranks.
  void report(const CommError& error) noexcept;
  /// Announces to them that this rank leaves in good order.
  void leave() noexcept;

 private:
  void send(std::int32_t failure, std::string_view text) noexcept;
  std::optional<CommError> hear(std::int32_t peer);

  std::int32_t rank_;
  std::vector<std::string> names_;   ///< [num_ranks]
  std::vector<StreamSocket> peers_;  ///< [num_ranks]; of other ranks than 0 only that to rank 0
  StreamSocket listener_;
  StreamSocket wake_;  ///< an eventfd
  std::array<std::byte, 16> secret_{};
};

}  // namespace magi::comm
