// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "comm/net/stream_socket.hpp"

namespace magi::comm {

/// A stream socket between processes of one machine.
class LocalSocket : public StreamSocket {
 public:
  LocalSocket() = default;
  explicit LocalSocket(int fd) : StreamSocket(fd) {}
  explicit LocalSocket(StreamSocket socket) : StreamSocket(std::move(socket)) {}

  /// Sends a copy of a file descriptor of this process; it stays the caller's.
  Result send_descriptor(int descriptor, Deadline deadline);
  /// Receives one; -1 where none came.
  Result receive_descriptor(FileDescriptor& descriptor, Deadline deadline);

  /// The socket that listens at an abstract name; nothing when another one does.
  static std::optional<LocalSocket> listen_at(const std::string& name, int backlog);
  /// Nothing when no one listens there (yet).
  static std::optional<LocalSocket> connect_to(const std::string& name);
  std::optional<LocalSocket> accept() const;

  struct Peer {
    std::int64_t pid = 0;
    std::int64_t user = 0;
    bool is_same_user = false;
  };
  Peer peer() const;
};

}  // namespace magi::comm
