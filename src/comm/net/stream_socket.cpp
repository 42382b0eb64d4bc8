// SPDX-License-Identifier: Apache-2.0
#include "comm/net/stream_socket.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/words.hpp"
#include "magi/error.hpp"

namespace magi::comm {
namespace {

/// False when the deadline passed first.
bool wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() < 0) return false;
    pollfd query{.fd = fd, .events = events, .revents = 0};
    const int limit = static_cast<int>(std::min<std::int64_t>(left.count(), 1000));
    const int ready = poll(&query, 1, limit);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_socket("wait for a socket");
    if (left.count() == 0) return false;
  }
}

}  // namespace

void throw_socket(const std::string& what) {
  throw CommError("cannot " + what + ": " + system_text(errno), CommFailure::System);
}

StreamSocket::Result StreamSocket::send_all(std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t count = send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      if (!wait_for(fd(), POLLOUT, deadline)) return Result::Timeout;
    } else if (errno != EINTR) {
      return Result::Ended;
    }
  }
  return Result::Done;
}

StreamSocket::Result StreamSocket::receive_all(std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t count = recv(fd(), bytes.data(), bytes.size(), 0);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (count == 0) {
      return Result::Ended;
    } else if (errno == EAGAIN) {
      if (!wait_for(fd(), POLLIN, deadline)) return Result::Timeout;
    } else if (errno != EINTR) {
      return Result::Ended;
    }
  }
  return Result::Done;
}

bool StreamSocket::wait_readable(Deadline deadline) const {
  return wait_for(fd(), POLLIN, deadline);
}

bool StreamSocket::wait_writable(Deadline deadline) const {
  return wait_for(fd(), POLLOUT, deadline);
}

std::optional<StreamSocket> StreamSocket::accept() const {
  const int accepted = accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (accepted >= 0) return StreamSocket(accepted);
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return std::nullopt;
  throw_socket("accept a connection");
}

}  // namespace magi::comm
