// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace magi::comm {

using Deadline = std::chrono::steady_clock::time_point;

/// Owner of a Unix stream socket. Calls that wait end at their deadline.
class LocalSocket {
 public:
  LocalSocket() = default;
  explicit LocalSocket(int fd) : fd_(fd) {}
  LocalSocket(LocalSocket&& other) noexcept;
  LocalSocket& operator=(LocalSocket&& other) noexcept;
  ~LocalSocket();

  bool is_open() const { return fd_ >= 0; }
  void close() noexcept;

  enum class Result { Done, Timeout, Ended };
  Result send_all(std::span<const std::byte> bytes, Deadline deadline);
  Result receive_all(std::span<std::byte> bytes, Deadline deadline);
  /// Sends a copy of a file descriptor of this process; it stays the caller's.
  Result send_descriptor(int descriptor, Deadline deadline);
  /// Receives one into `descriptor`, which the caller then owns; -1 where none came.
  Result receive_descriptor(int& descriptor, Deadline deadline);
  /// True when there is something to receive or accept before the deadline.
  bool wait_readable(Deadline deadline) const;

  /// The socket that listens at an abstract name; nothing when another one does.
  static std::optional<LocalSocket> listen_at(const std::string& name, int backlog);
  /// Nothing when no one listens there (yet).
  static std::optional<LocalSocket> connect_to(const std::string& name);
  std::optional<LocalSocket> accept();

  struct Peer {
    std::int64_t pid = 0;
    bool is_same_user = false;
  };
  Peer peer() const;

 private:
  int fd_ = -1;
};

}  // namespace magi::comm
