// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/file_descriptor.hpp"

namespace magi::comm {

using Deadline = std::chrono::steady_clock::time_point;

/// Owner of a stream socket that does not block. Calls that wait end at their deadline.
class StreamSocket {
 public:
  StreamSocket() = default;
  explicit StreamSocket(int fd) : fd_(fd) {}

  int fd() const { return fd_.get(); }
  bool is_open() const { return fd() >= 0; }
  void close() noexcept { fd_ = FileDescriptor(); }

  enum class Result { Done, Timeout, Ended };
  Result send_all(std::span<const std::byte> bytes, Deadline deadline);
  Result receive_all(std::span<std::byte> bytes, Deadline deadline);
  /// A plain value.
  template <typename Value>
  Result send_value(const Value& value, Deadline deadline) {
    return send_all(std::as_bytes(std::span(&value, 1)), deadline);
  }
  template <typename Value>
  Result receive_value(Value& value, Deadline deadline) {
    return receive_all(std::as_writable_bytes(std::span(&value, 1)), deadline);
  }
  /// True when there is something to receive or accept before the deadline.
  bool wait_readable(Deadline deadline) const;
  /// True when a connection has been made, or refused, before the deadline.
  bool wait_writable(Deadline deadline) const;
  /// Accepts a connection of a listening socket; nothing if none came.
  std::optional<StreamSocket> accept() const;

 private:
  FileDescriptor fd_;
};

/// Throws CommError(System) with the system's text for errno.
[[noreturn]] void throw_socket(const std::string& what);

}  // namespace magi::comm
